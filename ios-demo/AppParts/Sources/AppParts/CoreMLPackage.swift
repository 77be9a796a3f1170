import Foundation

/// What a Core ML package says of itself before Core ML reads it.
public enum CoreMLPackage {
    /// Source: `coremltools/__init__.py` of coremltools 9.0, `_SPECIFICATION_VERSION_IOS_…`.
    private static let systems = [6: 15, 7: 16, 8: 17, 9: 18, 10: 26]
    private static let program = "Data/com.apple.CoreML/model.mlmodel"
    /// Field 1 of a protobuf message, a number.
    private static let firstField: UInt8 = 0x08

    /// Returns the oldest iOS whose Core ML reads a package; nil where it does not tell, as in a version that is not known.
    public static func oldestIOS(_ package: URL) -> Int? {
        guard let file = try? FileHandle(forReadingFrom: package.appendingPathComponent(program)) else { return nil }
        defer { try? file.close() }
        // The version is the first field, and smaller than 128 is one byte.
        guard let head = try? file.read(upToCount: 2), head.count == 2, head.first == firstField else { return nil }
        return head.last.flatMap { systems[Int($0)] }
    }
}
