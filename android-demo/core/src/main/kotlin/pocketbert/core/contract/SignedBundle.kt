package pocketbert.core.contract

import kotlinx.serialization.json.JsonElement
import kotlinx.serialization.json.JsonObject
import kotlinx.serialization.json.JsonPrimitive
import kotlinx.serialization.json.longOrNull
import pocketbert.core.WrongJson
import pocketbert.core.child
import pocketbert.core.objects
import pocketbert.core.readStrictJson
import pocketbert.core.text
import java.io.IOException
import java.security.GeneralSecurityException
import java.security.KeyFactory
import java.security.MessageDigest
import java.security.PublicKey
import java.security.Signature
import java.security.spec.X509EncodedKeySpec
import java.util.Base64

/** Why a model is not taken; the words are those of `pocketbert verify-signature`. */
enum class Reason {
    UNSIGNED,
    UNREADABLE,
    TOO_LARGE,
    OTHER_KEY,
    FORGED,
    OTHER_BUNDLE,
    BAD_NAME,
    REPEATED,
    IRREGULAR,
    MISSING,
    ADDED,
    CHANGED,
    ;

    val word get() = name.lowercase()
}

/** A model is not what a trusted key signed. */
class SignatureRefused(val folder: String, val reason: Reason, what: String) : Unusable("$folder is refused (${reason.word}): $what")

/**
 * The keys whose signatures an app takes. They are compiled into it, and never read from what they judge; several, so that
 * one can follow the other.
 *
 * @param encoded each key as `pocketbert signing-key show` prints it: ECDSA P-256, base64 of the DER form.
 * @throws IllegalArgumentException one is no such key.
 */
class TrustedKeys(encoded: List<String>) {
    internal class Key(val key: PublicKey, val fingerprint: String)

    internal val keys = encoded.map { text ->
        try {
            val der = base64(text)
            // Other curves of 256 bits have another beginning.
            require(der.size == P256_BYTES && hex(der).startsWith(P256)) { "a trusted key is not of ECDSA P-256" }
            val key = KeyFactory.getInstance("EC").generatePublic(X509EncodedKeySpec(der))
            Key(key, fingerprint(der))
        } catch (error: GeneralSecurityException) {
            throw IllegalArgumentException("a trusted key cannot be read: ${text.take(40)}", error)
        }
    }

    /** Returns the sha256 of a key's PEM, which is what the format names a key by. */
    private fun fingerprint(der: ByteArray): String {
        val lines = Base64.getEncoder().encodeToString(der).chunked(PEM_LINE).joinToString("\n")
        return sha256("-----BEGIN PUBLIC KEY-----\n$lines\n-----END PUBLIC KEY-----\n".toByteArray())
    }

    private companion object {
        const val P256_BYTES = 91

        /** SubjectPublicKeyInfo of an uncompressed point on P-256. */
        const val P256 = "3059301306072a8648ce3d020106082a8648ce3d03010703420004"
        const val PEM_LINE = 64
    }
}

/**
 * What an app takes.
 *
 * @property keys whose signatures.
 * @property unsigned whether a model without a signature may be used, under a banner: for debug builds. A signature that is
 *     there has to be right in any build.
 */
class Policy(val keys: TrustedKeys, val unsigned: Boolean = false)

/** Compares a folder with the statement that a trusted key signed; the same checks in the same order as the pipeline's. */
internal class SignedBundle(private val files: Files, private val folder: String) {
    private class Statement(val name: String, val digests: Map<String, String>, val sizes: Map<String, Long>?)

    private val found = try {
        files.list(folder).sortedBy { it.path }
    } catch (_: IOException) {
        throw UnreadableFile(folder, "it is missing; ship the model again")
    }

    /** Returns the fingerprint of the key that signed the folder as [name]. @throws SignatureRefused nobody did. */
    fun verify(keys: TrustedKeys, name: String): String {
        val (payload, fingerprint) = payload(keys)
        val statement = statement(payload)
        if (statement.name != name) refuse(Reason.OTHER_BUNDLE, "the signature is for ${statement.name.take(SHOWN)}, not for $name")
        compare(statement.digests, statement.sizes)
        return fingerprint
    }

    /** Compares an unsigned folder with what a file in it says of the others, which shows accidents and no more. */
    fun compareWith(digests: Map<String, String>, sizes: Map<String, Long>, itself: String) = compare(digests, sizes, itself)

    private fun payload(keys: TrustedKeys): Pair<ByteArray, String> {
        val file = found.firstOrNull { it.path == SIGNATURE } ?: refuse(Reason.UNSIGNED, "it has no $SIGNATURE")
        if (!file.regular) refuse(Reason.IRREGULAR, "$SIGNATURE is no regular file")
        if ((file.bytes ?: 0) > MOST_SIGNATURE_BYTES) refuse(Reason.TOO_LARGE, "$SIGNATURE has ${file.bytes} bytes")
        val bytes = try {
            files.read("$folder/$SIGNATURE", MOST_SIGNATURE_BYTES)
        } catch (error: UnreadableFile) {
            refuse(Reason.TOO_LARGE, error.message.orEmpty())
        }
        val (payload, signature, hint) = understood("$SIGNATURE is no Sigstore bundle with one signature") {
            val document = readStrictJson(bytes)
            val envelope = document.child("dsseEnvelope") ?: throw WrongJson("dsseEnvelope")
            val hint = document.child("verificationMaterial")?.child("publicKey")?.text("hint") ?: throw WrongJson("hint")
            if (document.text("mediaType") != MEDIA_TYPE || envelope.text("payloadType") != PAYLOAD_TYPE) throw WrongJson("its type")
            val (payload, signature) = listOf(envelope.text("payload"), envelope.objects("signatures").single().text("sig"))
                .map(::base64)
            Triple(payload, signature, hint)
        }
        val signed = "DSSEv1 ${PAYLOAD_TYPE.length} $PAYLOAD_TYPE ${payload.size} ".toByteArray() + payload
        keys.keys.firstOrNull { signs(it.key, signed, signature) }?.let { return payload to it.fingerprint }
        // The hint is not signed: it tells the two cases apart for who reads the message, and decides nothing.
        if (keys.keys.any { it.fingerprint == hint }) {
            refuse(Reason.FORGED, "$SIGNATURE was changed, or made without the key that it names")
        }
        refuse(Reason.OTHER_KEY, "it is signed with a key that is not trusted")
    }

    private fun signs(key: PublicKey, signed: ByteArray, signature: ByteArray): Boolean = try {
        Signature.getInstance("SHA256withECDSA").run {
            initVerify(key)
            update(signed)
            verify(signature)
        }
    } catch (_: GeneralSecurityException) {
        false
    }

    /** Reads a statement that a trusted key signed; keys make mistakes too, so nothing in it is believed blindly. */
    private fun statement(payload: ByteArray): Statement {
        val document = understood("the statement is not JSON") { readStrictJson(payload) }
        val none = "the statement is none of model-signing with sha256 of files"
        val resources = understood(none) { predicate(document).objects("resources") }
        if (resources.size > MOST_FILES) refuse(Reason.TOO_LARGE, "the statement lists ${resources.size} files")
        val names = understood(none) { resources.map { it.text("name") } }
        val digests = understood(none) { resources.map(::digest) }
        val (subject, sizes) = understood(none) {
            val how = predicate(document).child("serialization") ?: throw WrongJson("serialization")
            val right = document.text("_type") == STATEMENT_TYPE &&
                document.text("predicateType") == PREDICATE_TYPE &&
                how.text("method") == "files" &&
                how.text("hash_type") == "sha256" &&
                names.isNotEmpty()
            if (!right) throw WrongJson("its type")
            document.objects("subject").single() to predicate(document).child("sizes")?.mapValues(::size)
        }
        val (name, root) = understood(none) {
            subject.text("name") to (subject.child("digest")?.text("sha256") ?: throw WrongJson("digest"))
        }
        if (sizes != null && sizes.keys != names.toSet()) refuse(Reason.UNREADABLE, none)
        names.firstOrNull { !isPlainPath(it) }?.let {
            refuse(Reason.BAD_NAME, "the statement lists \"${it.take(SHOWN)}\", which is no plain path")
        }
        // A phone's file system may not tell upper from lower case.
        val seen = HashSet<String>()
        names.firstOrNull { !seen.add(it.lowercase()) }?.let { refuse(Reason.REPEATED, "the statement lists $it more than once") }
        val joined = digests.flatMap { digest -> digest.chunked(2).map { it.toInt(HEXADECIMAL).toByte() } }.toByteArray()
        if (sha256(joined) != root) refuse(Reason.UNREADABLE, "the statement's own digest is not that of its files")
        return Statement(name, names.zip(digests).toMap(), sizes)
    }

    private fun predicate(document: JsonObject) = document.child("predicate") ?: throw WrongJson("predicate")

    private fun digest(resource: JsonObject): String {
        val digest = resource.text("digest")
        if (resource.text("algorithm") != "sha256" || !DIGEST.matches(digest)) throw WrongJson("digest")
        return digest
    }

    private fun size(entry: Map.Entry<String, JsonElement>): Long =
        (entry.value as? JsonPrimitive)?.takeUnless(JsonPrimitive::isString)?.longOrNull ?: throw WrongJson("sizes")

    private fun compare(digests: Map<String, String>, sizes: Map<String, Long>?, but: String = SIGNATURE) {
        found.firstOrNull { !it.regular }?.let { refuse(Reason.IRREGULAR, "${it.path} is a link, pipe or device") }
        val there = found.filter { it.path != but }
        val paths = there.mapTo(HashSet()) { it.path }
        digests.keys.sorted().firstOrNull { it !in paths }?.let { refuse(Reason.MISSING, "$it is listed and is not there") }
        paths.sorted().firstOrNull { it !in digests }?.let { refuse(Reason.ADDED, "$it is there and is not listed") }
        for (file in there) {
            val wanted = sizes?.get(file.path)
            if (file.bytes != null && wanted != null && file.bytes != wanted) {
                refuse(Reason.CHANGED, "${file.path} has ${file.bytes} bytes, and is listed with $wanted")
            }
            if ((file.bytes ?: 0) > MOST_FILE_BYTES) refuse(Reason.TOO_LARGE, "${file.path} has ${file.bytes} bytes")
        }
        for (file in there) {
            if (sha256(file.path) != digests[file.path]) refuse(Reason.CHANGED, "${file.path} does not have the content that is listed")
        }
    }

    private fun sha256(path: String): String {
        val digest = MessageDigest.getInstance("SHA-256")
        val buffer = ByteArray(1 shl 16)
        var read = 0L
        try {
            files.open("$folder/$path").use { stream ->
                while (true) {
                    val count = stream.read(buffer)
                    if (count < 0) return hex(digest.digest())
                    read += count
                    if (read > MOST_FILE_BYTES) refuse(Reason.TOO_LARGE, "$path has more than $MOST_FILE_BYTES bytes")
                    digest.update(buffer, 0, count)
                }
            }
        } catch (_: IOException) {
            refuse(Reason.MISSING, "$path cannot be read")
        }
    }

    private fun <T> understood(what: String, read: () -> T): T = try {
        read()
    } catch (_: WrongJson) {
        refuse(Reason.UNREADABLE, what)
    } catch (_: IllegalArgumentException) {
        // Not base64, or a list that should have one element.
        refuse(Reason.UNREADABLE, what)
    } catch (_: NoSuchElementException) {
        refuse(Reason.UNREADABLE, what)
    }

    private fun refuse(reason: Reason, what: String): Nothing = throw SignatureRefused(folder, reason, what)

    companion object {
        const val SIGNATURE = "model.sig"
        private const val MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
        private const val PAYLOAD_TYPE = "application/vnd.in-toto+json"
        private const val STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
        private const val PREDICATE_TYPE = "https://model_signing/signature/v1.0"
        private const val MOST_SIGNATURE_BYTES = 4 shl 20
        private const val MOST_FILE_BYTES = 4L shl 30
        private const val MOST_FILES = 10_000
        private const val SHOWN = 80
        private const val HEXADECIMAL = 16
        private val DIGEST = Regex("[0-9a-f]{64}")
    }
}

private val NAME = Regex("[A-Za-z0-9._-]+")

/** Returns whether a path can only lead to a file below the folder at hand. */
internal fun isPlainPath(path: String) = path.split('/').all { NAME.matches(it) && it != "." && it != ".." }

/** Reads base64 as the pipeline and Swift do: Java's own takes it without padding as well. */
private fun base64(text: String): ByteArray {
    require(text.length % BASE64_GROUP == 0) { "it is no base64" }
    return Base64.getDecoder().decode(text)
}

private const val BASE64_GROUP = 4

private fun sha256(bytes: ByteArray): String = hex(MessageDigest.getInstance("SHA-256").digest(bytes))

private fun hex(bytes: ByteArray) = bytes.joinToString("") { "%02x".format(it) }
