// Declared after Apple's documentation of Uniform Type Identifiers; see README.md.
public struct UTType: Sendable {
    public static let plainText: UTType = { fatalError() }()
}
