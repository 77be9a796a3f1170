// Declared after Apple's documentation of Core ML; see README.md.
import Foundation

// The module ObjectiveC's, which Foundation brings where it is Apple's.
public func autoreleasepool<Result>(invoking body: () throws -> Result) rethrows -> Result { try body() }

public enum MLComputeUnits: Int, Sendable {
    case cpuOnly, cpuAndGPU, all
    @available(iOS 16, *)
    case cpuAndNeuralEngine
}

open class MLModelConfiguration {
    public init() {}
    open var computeUnits: MLComputeUnits {
        get { fatalError() }
        set { fatalError() }
    }
    @available(iOS 18, *)
    open var functionName: String? {
        get { fatalError() }
        set { fatalError() }
    }
}

public enum MLMultiArrayDataType: Int, Sendable {
    case double, float32, float16, int32
}

open class MLMultiArray {
    open var dataType: MLMultiArrayDataType { fatalError() }
    public convenience init<Scalar: MLShapedArrayScalar>(_ shapedArray: MLShapedArray<Scalar>) { fatalError() }
    init() { fatalError() }
}

public protocol MLShapedArrayScalar: Sendable {}
extension Int32: MLShapedArrayScalar {}
extension Float: MLShapedArrayScalar {}

public struct MLShapedArray<Scalar: MLShapedArrayScalar> {
    public init<S: Sequence>(scalars: S, shape: [Int]) where S.Element == Scalar { fatalError() }
    public init(_ multiArray: MLMultiArray) { fatalError() }
    public var scalars: [Scalar] { fatalError() }
}

open class MLFeatureValue {
    public convenience init(multiArray value: MLMultiArray) { fatalError() }
    init() { fatalError() }
    open var multiArrayValue: MLMultiArray? { fatalError() }
}

public protocol MLFeatureProvider {
    var featureNames: Set<String> { get }
    func featureValue(for featureName: String) -> MLFeatureValue?
}

open class MLDictionaryFeatureProvider: MLFeatureProvider {
    public init(dictionary: [String: Any]) throws { fatalError() }
    open var featureNames: Set<String> { fatalError() }
    open func featureValue(for featureName: String) -> MLFeatureValue? { fatalError() }
}

open class MLModel {
    public convenience init(contentsOf url: URL, configuration: MLModelConfiguration) throws { fatalError() }
    init() { fatalError() }
    open class func compileModel(at modelURL: URL) throws -> URL { fatalError() }
    open func prediction(from input: any MLFeatureProvider) throws -> any MLFeatureProvider { fatalError() }
}

public class MLCPUComputeDevice {}
public class MLGPUComputeDevice {}
public class MLNeuralEngineComputeDevice {}

public enum MLComputeDevice {
    case cpu(MLCPUComputeDevice)
    case gpu(MLGPUComputeDevice)
    case neuralEngine(MLNeuralEngineComputeDevice)
}

@available(iOS 17.4, *)
public enum MLModelStructure {
    public struct Program {
        public struct Operation {
            public let operatorName: String
        }
        public struct Block {
            public let operations: [Operation]
        }
        public struct Function {
            public let block: Block
        }
        public let functions: [String: Function]
    }
    public struct NeuralNetwork {}
    public struct Pipeline {}
    case neuralNetwork(NeuralNetwork)
    case program(Program)
    case pipeline(Pipeline)
    case unsupported
}

@available(iOS 17.4, *)
public class MLComputePlan {
    public struct DeviceUsage {
        public let supported: [MLComputeDevice]
        public let preferred: MLComputeDevice
    }
    public class func load(contentsOf url: URL, configuration: MLModelConfiguration) async throws -> MLComputePlan { fatalError() }
    public var modelStructure: MLModelStructure { fatalError() }
    public func deviceUsage(for operation: MLModelStructure.Program.Operation) -> DeviceUsage? { fatalError() }
}
