import Foundation

#if canImport(CryptoKit)
    import CryptoKit
#else
    import COpenSSL
#endif

/// The SHA-256 of bytes that come piece by piece.
final class Sha256 {
    #if canImport(CryptoKit)
        private var hash = SHA256()

        func update(_ bytes: UnsafeRawBufferPointer) { hash.update(bufferPointer: bytes) }

        /// Returns the digest in hexadecimal; nothing may come after it.
        func finish() -> String { Self.hex(Array(hash.finalize())) }
    #else
        private let context: OpaquePointer

        init() {
            guard let context = EVP_MD_CTX_new(), EVP_DigestInit_ex(context, EVP_sha256(), nil) == 1 else {
                preconditionFailure("libcrypto has no SHA-256")
            }
            self.context = context
        }

        deinit { EVP_MD_CTX_free(context) }

        func update(_ bytes: UnsafeRawBufferPointer) {
            precondition(EVP_DigestUpdate(context, bytes.baseAddress, bytes.count) == 1, "libcrypto cannot hash")
        }

        /// Returns the digest in hexadecimal; nothing may come after it.
        func finish() -> String {
            var digest = [UInt8](repeating: 0, count: 32)
            precondition(EVP_DigestFinal_ex(context, &digest, nil) == 1, "libcrypto cannot hash")
            return Self.hex(digest)
        }
    #endif

    static func hex(of bytes: some Collection<UInt8>) -> String {
        let hash = Sha256()
        Array(bytes).withUnsafeBytes(hash.update)
        return hash.finish()
    }

    private static func hex(_ digest: [UInt8]) -> String {
        let digits = Array("0123456789abcdef".utf8)
        return String(decoding: digest.flatMap { [digits[Int($0 >> 4)], digits[Int($0 & 15)]] }, as: UTF8.self)
    }
}

/// Signatures of ECDSA P-256 over the SHA-256 of a message.
enum Ecdsa {
    /// What every public key of P-256 begins with in DER, before the two coordinates; libraries take other forms too, and
    /// not the same ones. Source: RFC 5480, sections 2.1 and 2.2.
    private static let before: [UInt8] = [
        0x30, 0x59, 0x30, 0x13, 0x06, 0x07, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01, 0x06, 0x08, 0x2A, 0x86, 0x48, 0xCE, 0x3D,
        0x03, 0x01, 0x07, 0x03, 0x42, 0x00, 0x04,
    ]
    private static let keyBytes = 91
    /// The object identifier of keys on elliptic curves, in DER. Source: RFC 5480, section 2.1.1.
    private static let curves: [UInt8] = [0x06, 0x07, 0x2A, 0x86, 0x48, 0xCE, 0x3D, 0x02, 0x01]

    /// Whether bytes are a public key of P-256, with its point on the curve.
    static func isKey(_ der: [UInt8]) -> Bool { der.count == keyBytes && der.starts(with: before) && isPoint(der) }

    /// Whether bytes look like a public key of another curve.
    static func isOfOtherCurve(_ der: [UInt8]) -> Bool {
        // The identifier stands behind the heads of two sequences, which have two bytes each, or more in long keys.
        !der.starts(with: before) && (4...7).contains { der.dropFirst($0).starts(with: curves) }
    }

    #if canImport(CryptoKit)
        private static func isPoint(_ der: [UInt8]) -> Bool { (try? P256.Signing.PublicKey(derRepresentation: der)) != nil }

        /// Whether a key signed a message; false for what is no key or no signature in DER.
        static func verify(_ der: [UInt8], _ message: [UInt8], _ signature: [UInt8]) -> Bool {
            guard isKey(der), let key = try? P256.Signing.PublicKey(derRepresentation: der),
                let signature = try? P256.Signing.ECDSASignature(derRepresentation: signature)
            else { return false }
            return key.isValidSignature(signature, for: message)
        }
    #else
        private static func isPoint(_ der: [UInt8]) -> Bool { withKey(der) { _ in true } }

        /// Whether a key signed a message; false for what is no key or no signature in DER.
        static func verify(_ der: [UInt8], _ message: [UInt8], _ signature: [UInt8]) -> Bool {
            isKey(der)
                && withKey(der) { key in
                    let context = EVP_MD_CTX_new()
                    defer { EVP_MD_CTX_free(context) }
                    return EVP_DigestVerifyInit(context, nil, EVP_sha256(), nil, key) == 1
                        && EVP_DigestVerify(context, signature, signature.count, message, message.count) == 1
                }
        }

        private static func withKey(_ der: [UInt8], _ use: (OpaquePointer) -> Bool) -> Bool {
            // What is wrong stays in a list of the thread otherwise.
            defer { ERR_clear_error() }
            return der.withUnsafeBufferPointer { bytes in
                var place = bytes.baseAddress
                guard let key = d2i_PUBKEY(nil, &place, bytes.count) else { return false }
                defer { EVP_PKEY_free(key) }
                return use(key)
            }
        }
    #endif
}
