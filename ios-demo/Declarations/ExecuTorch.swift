// Declared after the headers and Swift files of pytorch/executorch, extension/apple, at v1.4.1; see README.md.
import Foundation

// The module ObjectiveC's, which Foundation brings where it is Apple's.
public func autoreleasepool<Result>(invoking body: () throws -> Result) rethrows -> Result { try body() }

public enum DataType: Int {
    case int = 3
    case float = 6
}

public enum ShapeDynamism: Int {
    case `static`, dynamicBound, dynamicUnbound
}

public protocol Scalar {
    static var dataType: DataType { get }
    func asNSNumber() -> NSNumber
}
extension Int32: Scalar {
    public static var dataType: DataType { .int }
    public func asNSNumber() -> NSNumber { fatalError() }
}
extension Float: Scalar {
    public static var dataType: DataType { .float }
    public func asNSNumber() -> NSNumber { fatalError() }
}

public protocol ValueConvertible {
    func asValue() -> Value
}
public protocol ValueConstructible {
    static func from(_ value: Value) throws -> Self
}
public protocol ValueSequenceConstructible {
    static func from(_ values: [Value]) throws -> Self
}

open class AnyTensor: ValueConvertible {
    init() { fatalError() }
    public func asValue() -> Value { fatalError() }
}

public final class Tensor<T: Scalar>: Equatable, ValueConvertible {
    public init(_ tensor: AnyTensor) { fatalError() }
    public convenience init(
        _ scalars: inout [T], shape: [Int] = [], strides: [Int] = [], dimensionOrder: [Int] = [],
        shapeDynamism: ShapeDynamism = .dynamicBound
    ) { fatalError() }
    public convenience init(
        _ scalars: [T], shape: [Int] = [], strides: [Int] = [], dimensionOrder: [Int] = [],
        shapeDynamism: ShapeDynamism = .dynamicBound
    ) { fatalError() }
    public convenience init(_ scalar: T) { fatalError() }
    public let anyTensor: AnyTensor
    public static func == (lhs: Tensor<T>, rhs: Tensor<T>) -> Bool { fatalError() }
    public func asValue() -> Value { fatalError() }
}
extension Tensor {
    public func scalars() -> [T] { fatalError() }
}

public final class Value: ValueConvertible, ValueConstructible, ValueSequenceConstructible {
    init() { fatalError() }
    public var isInteger: Bool { fatalError() }
    public var integer: Int { fatalError() }
    public var anyTensor: AnyTensor? { fatalError() }
    public func tensor<T: Scalar>() -> Tensor<T>? { fatalError() }
    public func asValue() -> Value { self }
    public static func from(_ value: Value) throws -> Value { fatalError() }
    public static func from(_ values: [Value]) throws -> Value { fatalError() }
}
extension Int: ValueConvertible, ValueConstructible {
    public func asValue() -> Value { fatalError() }
    public static func from(_ value: Value) throws -> Int { fatalError() }
}
extension Array: ValueSequenceConstructible where Element: ValueConstructible {
    public static func from(_ values: [Value]) throws -> [Element] { fatalError() }
}

public enum ModuleLoadMode: Int {
    case file, mmap, mmapUseMlock, mmapUseMlockIgnoreErrors
}
public enum ModuleVerification: UInt8 {
    case minimal, internalConsistency
}

public final class MethodMetadata {
    init() { fatalError() }
    public var backendNames: [String] { fatalError() }
    public var instructionCount: Int { fatalError() }
}

open class Module {
    public init(filePath: String, dataFilePaths: [String], loadMode: ModuleLoadMode) { fatalError() }
    public convenience init(filePath: String, loadMode: ModuleLoadMode) { fatalError() }
    public convenience init(filePath: String) { fatalError() }
    public func load(with verification: ModuleVerification) throws { fatalError() }
    public func load() throws { fatalError() }
    public func isLoaded() -> Bool { fatalError() }
    public func load(_ methodName: String) throws { fatalError() }
    public func isLoaded(_ methodName: String) -> Bool { fatalError() }
    public func methodNames() throws -> Set<String> { fatalError() }
    public func methodMetadata(_ methodName: String) throws -> MethodMetadata { fatalError() }
    public func execute(_ methodName: String) throws -> [Value] { fatalError() }
}

// All of the overlay's, so that the compiler chooses among them here as it does on a Mac.
extension Module {
    public func execute(_ method: String, _ inputs: [ValueConvertible]) throws -> [Value] { fatalError() }
    public func execute(_ method: String, _ inputs: ValueConvertible...) throws -> [Value] { fatalError() }
    public func execute<Output: ValueSequenceConstructible>(_ method: String, _ inputs: [ValueConvertible]) throws -> Output {
        fatalError()
    }
    public func execute<Output: ValueSequenceConstructible>(_ method: String, _ inputs: ValueConvertible...) throws -> Output {
        fatalError()
    }
    public func execute<Output: ValueSequenceConstructible>(_ method: String, _ input: ValueConvertible) throws -> Output {
        fatalError()
    }
    public func execute<Output: ValueSequenceConstructible>(_ method: String) throws -> Output { fatalError() }
}
