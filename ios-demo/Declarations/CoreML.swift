// Declared after Apple's documentation of Core ML, and the public interface of the iOS 18.0 SDK; see README.md.
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
    public convenience init<ShapedArray: MLShapedArrayProtocol>(_ shapedArray: ShapedArray) { fatalError() }
    init() { fatalError() }
}

public protocol MLShapedArrayScalar: Sendable {}
extension Int32: MLShapedArrayScalar {}
extension Float: MLShapedArrayScalar {}

public protocol MLShapedArrayProtocol<Scalar> {
    associatedtype Scalar: MLShapedArrayScalar
}

extension MLShapedArrayProtocol {
    public init<S: Sequence>(scalars: S, shape: [Int]) where S.Element == Scalar { fatalError() }
    public init(_ multiArray: MLMultiArray) { fatalError() }
    public var scalars: [Scalar] {
        get { fatalError() }
        set { fatalError() }
    }
}

public struct MLShapedArray<Scalar: MLShapedArrayScalar>: MLShapedArrayProtocol {}

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

open class MLPredictionOptions {
    public init() {}
}

open class MLModel {
    public convenience init(contentsOf url: URL, configuration: MLModelConfiguration) throws { fatalError() }
    init() { fatalError() }
    open class func compileModel(at modelURL: URL) throws -> URL { fatalError() }
    open func prediction(from input: any MLFeatureProvider) throws -> any MLFeatureProvider { fatalError() }
}

// The overlay's, of which a synchronous caller must not take one.
extension MLModel {
    @available(iOS 16, *)
    public class func compileModel(at url: URL) async throws -> URL { fatalError() }
    @available(iOS 17, *)
    public func prediction(
        from input: any MLFeatureProvider, options: MLPredictionOptions = MLPredictionOptions()
    ) async throws -> any MLFeatureProvider { fatalError() }
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
public enum MLModelStructure: Sendable {
    public struct Program: Sendable {
        public struct Operation: Sendable {
            public let operatorName: String
            public let blocks: [Block]
        }
        public struct Block: Sendable {
            public let outputNames: [String]
            public let operations: [Operation]
        }
        public struct Function: Sendable {
            public let block: Block
        }
        public let functions: [String: Function]
    }
    public struct NeuralNetwork: Sendable {}
    public struct Pipeline: Sendable {}
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
    public struct Cost: Sendable {
        public let weight: Double
    }
    public class func load(contentsOf url: URL, configuration: MLModelConfiguration) async throws -> MLComputePlan { fatalError() }
    public var modelStructure: MLModelStructure { fatalError() }
    public func deviceUsage(for operation: MLModelStructure.Program.Operation) -> DeviceUsage? { fatalError() }
    public func estimatedCost(of operation: MLModelStructure.Program.Operation) -> Cost? { fatalError() }
}
