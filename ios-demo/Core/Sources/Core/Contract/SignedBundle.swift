import Foundation

/// Why a model is not taken; the words are those of `pocketbert verify-signature`.
public enum Reason: String, Sendable, CaseIterable {
    case unsigned
    case unreadable
    case tooLarge = "too_large"
    case otherKey = "other_key"
    case forged
    case otherBundle = "other_bundle"
    case badName = "bad_name"
    case repeated
    case irregular
    case missing
    case added
    case changed

    /// The reason in the pipeline's words.
    public var word: String { rawValue }
}

/// A model is not what a trusted key signed.
public struct SignatureRefused: Unusable {
    /// The model's folder.
    public let folder: String
    public let reason: Reason
    /// The folder and what is wrong, in one sentence.
    public let description: String

    init(_ folder: String, _ reason: Reason, _ what: String) {
        self.folder = folder
        self.reason = reason
        description = "\(folder) is refused (\(reason.word)): \(what)"
    }
}

/// A text that is no key; the message is a sentence.
public struct WrongKey: Error, CustomStringConvertible, Sendable {
    public let description: String
}

/// The keys whose signatures an app takes. They are compiled into it, and never read from what they judge; several, so that
/// one can follow the other.
public struct TrustedKeys: Sendable {
    struct Key: Sendable {
        let der: [UInt8]
        let fingerprint: String
    }

    let keys: [Key]

    /// Takes each key as `pocketbert signing-key show` prints it: ECDSA P-256, base64 of the DER form.
    ///
    /// - Throws: `WrongKey` where one is no such key.
    public init(_ encoded: [String]) throws {
        keys = try encoded.map { text in
            let der = [UInt8](Data(base64Encoded: text) ?? Data())
            if Ecdsa.isKey(der) { return Key(der: der, fingerprint: Self.fingerprint(der)) }
            if Ecdsa.isOfOtherCurve(der) { throw WrongKey(description: "a trusted key is not of ECDSA P-256") }
            throw WrongKey(description: "a trusted key cannot be read: \(text.prefix(40))")
        }
    }

    /// Returns the sha256 of a key's PEM, which is what the format names a key by.
    private static func fingerprint(_ der: [UInt8]) -> String {
        let base64 = Array(Data(der).base64EncodedString().utf8)
        let lines = stride(from: 0, to: base64.count, by: 64).map { base64[$0..<min($0 + 64, base64.count)] }
        let body = String(decoding: Array(lines.joined(separator: [UInt8(ascii: "\n")])), as: UTF8.self)
        return Sha256.hex(of: "-----BEGIN PUBLIC KEY-----\n\(body)\n-----END PUBLIC KEY-----\n".utf8)
    }
}

/// What an app takes.
public struct Policy: Sendable {
    /// Whose signatures.
    public let keys: TrustedKeys
    /// Whether a model without a signature may be used, under a banner: for debug builds. A signature that is there has to be
    /// right in any build.
    public let unsigned: Bool

    public init(keys: TrustedKeys, unsigned: Bool = false) {
        self.keys = keys
        self.unsigned = unsigned
    }
}

/// Compares a folder with the statement that a trusted key signed; the same checks in the same order as the pipeline's.
struct SignedBundle {
    private struct Statement {
        let name: String
        let digests: [ExactText: String]
        let sizes: [ExactText: Int64]?
    }

    private static let signature = "model.sig"
    private static let mediaType = "application/vnd.dev.sigstore.bundle.v0.3+json"
    private static let payloadType = "application/vnd.in-toto+json"
    private static let statementType = "https://in-toto.io/Statement/v1"
    private static let predicateType = "https://model_signing/signature/v1.0"
    private static let mostSignatureBytes = 4 << 20
    private static let mostFileBytes: Int64 = 4 << 30
    private static let mostFiles = 10_000

    private let files: any Files
    private let folder: String
    private let found: [FoundFile]

    init(_ files: any Files, _ folder: String) throws {
        self.files = files
        self.folder = folder
        do {
            found = try files.list(folder).sorted { ExactText($0.path) < ExactText($1.path) }
        } catch {
            throw UnreadableFile(folder, "it is missing; ship the model again")
        }
    }

    /// Returns the fingerprint of the key that signed the folder as `name`. Throws `SignatureRefused` where nobody did.
    func verify(_ keys: TrustedKeys, _ name: String) throws -> String {
        let (payload, fingerprint) = try payload(keys)
        let statement = try statement(payload)
        if ExactText(statement.name) != ExactText(name) {
            throw refused(.otherBundle, "the signature is for \(statement.name.prefix(80)), not for \(name)")
        }
        try compare(statement.digests, statement.sizes, but: Self.signature)
        return fingerprint
    }

    /// Compares an unsigned folder with what a file in it says of the others, which shows accidents and no more.
    func compareWith(_ digests: [ExactText: String], _ sizes: [ExactText: Int64], itself: String) throws {
        try compare(digests, sizes, but: itself)
    }

    private func payload(_ keys: TrustedKeys) throws -> ([UInt8], String) {
        guard let file = found.first(where: { $0.path == Self.signature }) else {
            throw refused(.unsigned, "it has no \(Self.signature)")
        }
        if !file.regular { throw refused(.irregular, "\(Self.signature) is no regular file") }
        if let size = file.bytes, size > Self.mostSignatureBytes {
            throw refused(.tooLarge, "\(Self.signature) has \(size) bytes")
        }
        let bytes: [UInt8]
        do {
            bytes = try files.read("\(folder)/\(Self.signature)", most: Self.mostSignatureBytes)
        } catch let error as UnreadableFile {
            throw refused(.tooLarge, error.description)
        }
        let (payload, signature, hint) = try understood("\(Self.signature) is no Sigstore bundle with one signature") {
            let document = try Json.readStrict(bytes)
            let envelope = try document.needed("dsseEnvelope")
            let hint = try document.needed("verificationMaterial").needed("publicKey").text("hint")
            let right = try document.text("mediaType") == Self.mediaType && envelope.text("payloadType") == Self.payloadType
            if !right { throw WrongJson("its type") }
            let payload = try envelope.base64("payload")
            return (payload, try envelope.only("signatures").base64("sig"), hint)
        }
        let signed = Array("DSSEv1 \(Self.payloadType.utf8.count) \(Self.payloadType) \(payload.count) ".utf8) + payload
        if let key = keys.keys.first(where: { Ecdsa.verify($0.der, signed, signature) }) { return (payload, key.fingerprint) }
        // The hint is not signed: it tells the two cases apart for who reads the message, and decides nothing.
        if keys.keys.contains(where: { $0.fingerprint == hint }) {
            throw refused(.forged, "\(Self.signature) was changed, or made without the key that it names")
        }
        throw refused(.otherKey, "it is signed with a key that is not trusted")
    }

    /// Reads a statement that a trusted key signed; keys make mistakes too, so nothing in it is believed blindly.
    private func statement(_ payload: [UInt8]) throws -> Statement {
        let document = try understood("the statement is not JSON") { try Json.readStrict(payload) }
        let none = "the statement is none of model-signing with sha256 of files"
        let predicate = try understood(none) { try document.needed("predicate") }
        let resources = try understood(none) { try predicate.objects("resources") }
        if resources.count > Self.mostFiles { throw refused(.tooLarge, "the statement lists \(resources.count) files") }
        let names = try understood(none) { try resources.map { try $0.text("name") } }
        let digests = try understood(none) { try resources.map(Self.digest) }
        let (subject, sizes) = try understood(none) {
            let how = try predicate.needed("serialization")
            let right =
                try document.text("_type") == Self.statementType && document.text("predicateType") == Self.predicateType
                && how.text("method") == "files" && how.text("hash_type") == "sha256" && !names.isEmpty
            if !right { throw WrongJson("its type") }
            return (try document.only("subject"), try predicate.child("sizes")?.sizes())
        }
        let (name, root) = try understood(none) { (try subject.text("name"), try subject.needed("digest").text("sha256")) }
        let keys = names.map(ExactText.init)
        if let sizes, Set(sizes.keys) != Set(keys) { throw refused(.unreadable, none) }
        if let bad = names.first(where: { !$0.isPlainPath }) {
            throw refused(.badName, "the statement lists \"\(bad.prefix(80))\", which is no plain path")
        }
        // A phone's file system may not tell upper from lower case.
        var seen: Set<String> = []
        if let twice = names.first(where: { !seen.insert($0.lowercased()).inserted }) {
            throw refused(.repeated, "the statement lists \(twice) more than once")
        }
        if Sha256.hex(of: digests.flatMap(Self.bytes)) != root {
            throw refused(.unreadable, "the statement's own digest is not that of its files")
        }
        return Statement(name: name, digests: Dictionary(zip(keys, digests)) { $1 }, sizes: sizes)
    }

    private static func digest(_ resource: Json) throws -> String {
        let digest = try resource.text("digest")
        let right = digest.utf8.count == 64 && digest.utf8.allSatisfy { (0x30...0x39).contains($0) || (0x61...0x66).contains($0) }
        if try resource.text("algorithm") != "sha256" || !right { throw WrongJson("digest") }
        return digest
    }

    private static func bytes(_ digest: String) -> [UInt8] {
        let digits = digest.utf8.map { $0 < 0x3A ? $0 - 0x30 : $0 - 0x61 + 10 }
        return stride(from: 0, to: digits.count, by: 2).map { digits[$0] << 4 | digits[$0 + 1] }
    }

    private func compare(_ digests: [ExactText: String], _ sizes: [ExactText: Int64]?, but: String) throws {
        if let odd = found.first(where: { !$0.regular }) { throw refused(.irregular, "\(odd.path) is a link, pipe or device") }
        let there = found.filter { ExactText($0.path) != ExactText(but) }
        let paths = Set(there.map { ExactText($0.path) })
        if let path = digests.keys.sorted().first(where: { !paths.contains($0) }) {
            throw refused(.missing, "\(path.text) is listed and is not there")
        }
        if let path = paths.sorted().first(where: { digests[$0] == nil }) {
            throw refused(.added, "\(path.text) is there and is not listed")
        }
        for file in there {
            guard let size = file.bytes else { continue }
            if let wanted = sizes?[ExactText(file.path)], size != wanted {
                throw refused(.changed, "\(file.path) has \(size) bytes, and is listed with \(wanted)")
            }
            if size > Self.mostFileBytes { throw refused(.tooLarge, "\(file.path) has \(size) bytes") }
        }
        for file in there where try sha256(file.path) != digests[ExactText(file.path)] {
            throw refused(.changed, "\(file.path) does not have the content that is listed")
        }
    }

    private func sha256(_ path: String) throws -> String {
        let hash = Sha256()
        var read: Int64 = 0
        do {
            try files.stream("\(folder)/\(path)") { piece in
                read += Int64(piece.count)
                if read > Self.mostFileBytes { throw refused(.tooLarge, "\(path) has more than \(Self.mostFileBytes) bytes") }
                hash.update(piece)
            }
        } catch let error as SignatureRefused {
            throw error
        } catch {
            throw refused(.missing, "\(path) cannot be read")
        }
        return hash.finish()
    }

    private func understood<Result>(_ what: String, _ read: () throws -> Result) throws -> Result {
        do {
            return try read()
        } catch is WrongJson {
            throw refused(.unreadable, what)
        }
    }

    private func refused(_ reason: Reason, _ what: String) -> SignatureRefused { SignatureRefused(folder, reason, what) }
}

extension Json {
    fileprivate func needed(_ name: String) throws -> Json {
        guard let child = try child(name) else { throw wrong(name, "an object") }
        return child
    }

    fileprivate func only(_ name: String) throws -> Json {
        let all = try objects(name)
        if all.count != 1 { throw wrong(name, "a list of one object") }
        return all[0]
    }

    fileprivate func base64(_ name: String) throws -> [UInt8] {
        guard let data = Data(base64Encoded: try text(name)) else { throw wrong(name, "base64") }
        return [UInt8](data)
    }

    fileprivate func sizes() throws -> [ExactText: Int64] {
        guard case .object(let fields) = self else { return [:] }
        return Dictionary(
            try fields.map { key, value in
                guard let size = value.long else { throw wrong(key, "a whole number") }
                return (ExactText(key), size)
            }
        ) { $1 }
    }
}

extension String {
    /// Whether a path can only lead to a file below the folder at hand.
    var isPlainPath: Bool {
        utf8.split(separator: UInt8(ascii: "/"), omittingEmptySubsequences: false).allSatisfy { name in
            !name.isEmpty && !name.elementsEqual(".".utf8) && !name.elementsEqual("..".utf8) && name.allSatisfy(\.isOfPlainName)
        }
    }
}

extension UInt8 {
    /// Whether it is one of `[A-Za-z0-9._-]`.
    var isOfPlainName: Bool {
        switch self {
        case 0x30...0x39, 0x41...0x5A, 0x61...0x7A, UInt8(ascii: "."), UInt8(ascii: "_"), UInt8(ascii: "-"): true
        default: false
        }
    }
}

extension Array {
    /// The elements as messages list them.
    var listed: String { "[\(map { "\($0)" }.joined(separator: ", "))]" }
}
