import Core

/// Whose models this app takes. The list is compiled in, and never read from what it judges.
///
/// Make a key and print it in the form that stands here:
///
///     pocketbert signing-key new release.pem
///     pocketbert signing-key show release.pem.pub
///     pocketbert ship <recipe> --sign release.pem
///
/// Two keys may stand here while one follows the other.
enum TrustedKeysOfApp {
    static let encoded: [String] = []

    /// What the app takes: in a debug build also models that nobody signed, under a banner; in a release build signed ones alone.
    static func policy() throws -> Policy {
        #if DEBUG
            let unsigned = true
        #else
            let unsigned = false
        #endif
        return Policy(keys: try TrustedKeys(encoded), unsigned: unsigned)
    }
}
