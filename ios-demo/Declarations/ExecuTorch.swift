// Declared after the headers and Swift files of pytorch/executorch, extension/apple, at v1.4.1; see README.md.
import Foundation

// The module ObjectiveC's, which Foundation brings where it is Apple's.
public func autoreleasepool<Result>(invoking body: () throws -> Result) rethrows -> Result { try body() }

public enum DataType: Int {
    case int = 3
    case float = 6
}

public protocol Scalar {
    static var dataType: DataType { get }
}
extension Int32: Scalar {
    public static var dataType: DataType { .int }
}
extension Float: Scalar {
    public static var dataType: DataType { .float }
}

open class AnyTensor {
    init() { fatalError() }
}

public protocol ValueConvertible {
    func asValue() -> Value
}

public final class Tensor<T: Scalar>: ValueConvertible {
    public init(_ scalars: [T], shape: [Int] = [], strides: [Int] = [], dimensionOrder: [Int] = []) { fatalError() }
    public func scalars() -> [T] { fatalError() }
    public func asValue() -> Value { fatalError() }
}

open class Value: ValueConvertible {
    init() { fatalError() }
    public var isInteger: Bool { fatalError() }
    public var integer: Int { fatalError() }
    public func tensor<T: Scalar>() -> Tensor<T>? { fatalError() }
    public func asValue() -> Value { self }
}

public enum ModuleLoadMode: Int {
    case file, mmap, mmapUseMlock, mmapUseMlockIgnoreErrors
}

open class MethodMetadata {
    init() { fatalError() }
    public var backendNames: [String] { fatalError() }
    public var instructionCount: Int { fatalError() }
}

open class Module {
    public init(filePath: String, loadMode: ModuleLoadMode) { fatalError() }
    public func load() throws { fatalError() }
    public func load(_ methodName: String) throws { fatalError() }
    public func methodMetadata(_ methodName: String) throws -> MethodMetadata { fatalError() }
    public func execute(_ methodName: String) throws -> [Value] { fatalError() }
    public func execute(_ method: String, _ inputs: [ValueConvertible]) throws -> [Value] { fatalError() }
}
