import AppParts
import Core
import CoreML
import Foundation

/// Core ML, which comes with the system. A package is compiled when it is first opened, and the result is kept.
struct CoreMLRuntime: Runtime {
    /// Names of compute units, as `coremltools` spells them, and so do records; the default first.
    static let units: [(name: String, units: MLComputeUnits)] = {
        var units: [(String, MLComputeUnits)] = [("ALL", .all)]
        if #available(iOS 16, *) { units.append(("CPU_AND_NE", .cpuAndNeuralEngine)) }
        return units + [("CPU_AND_GPU", .cpuAndGPU), ("CPU_ONLY", .cpuOnly)]
    }()

    /// The build of the system, which is the build of Core ML.
    let build: String
    let compiled: CompiledModels

    let name = "Core ML"
    let backend = "coreml"
    /// Core ML has no number of its own.
    var version: String {
        let system = ProcessInfo.processInfo.operatingSystemVersion
        return "iOS \(system.majorVersion).\(system.minorVersion).\(system.patchVersion) (\(build))"
    }

    /// The runtime with what it lets one choose; Core ML chooses its threads itself.
    var linked: LinkedRuntime { LinkedRuntime(self, computeUnits: Self.units.map(\.name)) }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        let wanted = options.computeUnits ?? Self.units[0].name
        guard let units = Self.units.first(where: { $0.name == wanted })?.units else {
            let offered = Self.units.map(\.name).joined(separator: ", ")
            throw RunnerRefused("there are no compute units \(wanted) in Core ML here; there are \(offered)")
        }
        try refuseNewer(model)
        if options.threads != 1 { throw RunnerRefused("Core ML chooses its threads itself, and cannot be told to use \(options.threads)") }
        do {
            do {
                return try CoreMLRunner(model.signature, try place(of: model), units)
            } catch let error as RunnerRefused {
                throw error
            } catch {
                // The compiled form may be damaged; the package was verified.
                compiled.forget(model.entry.digest)
                return try CoreMLRunner(model.signature, try place(of: model), units)
            }
        } catch let error as RunnerRefused {
            throw error
        } catch {
            throw RunnerFailed("Core ML cannot open \(model.file): \(error.localizedDescription)")
        }
    }

    /// Says what a file needs before Core ML compiles it, and gives up with an error of its own.
    private func refuseNewer(_ model: Model) throws {
        let system = ProcessInfo.processInfo.operatingSystemVersion
        guard let package = model.onDisk, let needed = CoreMLPackage.oldestIOS(package), system.majorVersion < needed else { return }
        throw RunnerRefused(
            "\(model.file) needs iOS \(needed), and this is \(version); a recipe makes one for older systems with minimum_ios")
    }

    private func place(of model: Model) throws -> URL {
        guard let package = model.onDisk else { throw RunnerFailed("\(model.file) lies in no folder") }
        return try compiled.find(model.entry.digest) { try MLModel.compileModel(at: package) }
    }
}

/// One package with all of its functions, which share their weights; each is prepared for the chip by itself.
private final class CoreMLRunner: Runner, @unchecked Sendable {
    private let signature: Signature
    private let place: URL
    private let units: MLComputeUnits
    // One call at a time, as the protocol has it.
    private var loaded: [String: MLModel]
    private var prepared = PreparedRow<MLDictionaryFeatureProvider>()
    // Asking takes about as long as loading, so it is asked when somebody wants to know, which is after the measuring.
    private lazy var plan = Self.plan(signature, place, units)

    init(_ signature: Signature, _ place: URL, _ units: MLComputeUnits) throws {
        self.signature = signature
        self.place = place
        self.units = units
        loaded = try Dictionary(
            uniqueKeysWithValues: signature.functions.map { function in
                let name = try Self.functionName(signature, function)
                return (function.name, try MLModel(contentsOf: place, configuration: MLModelConfiguration(units, name)))
            })
    }

    var delegate: String? { plan?.busiest }
    var operations: (delegated: Int, all: Int)? { plan.map { ($0.all - ($0.counts[ComputePlan.cpu] ?? 0), $0.all) } }
    var operationsByUnit: [String: Int]? { plan?.counts }
    var shareByUnit: [String: Double]? { plan?.shares }

    func prepare(_ row: PaddedRow) throws { _ = try inputs(row) }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        let inputs = try inputs(row)
        // A benchmark runs for minutes in one block of a queue, and what each row leaves would be freed at its end.
        return try autoreleasepool { try compute(row.function, inputs) }
    }

    private func compute(_ function: Function, _ inputs: MLDictionaryFeatureProvider) throws -> [String: [Float]] {
        guard let model = loaded[function.name] else { throw RunnerFailed("the model was closed") }
        let outputs: any MLFeatureProvider
        do {
            outputs = try model.prediction(from: inputs)
        } catch {
            throw RunnerFailed("Core ML gave up: \(error.localizedDescription)")
        }
        return try Dictionary(
            uniqueKeysWithValues: function.outputs.map { tensor in
                guard let array = outputs.featureValue(for: tensor.name)?.multiArrayValue, array.dataType == .float32 else {
                    throw RunnerFailed("Core ML gave no \(tensor.name) of 32-bit numbers")
                }
                // An output may have gaps between its rows; a shaped array reads it without them.
                return (tensor.name, MLShapedArray<Float>(array).scalars)
            })
    }

    private func inputs(_ row: PaddedRow) throws -> MLDictionaryFeatureProvider {
        try prepared.inputs(row) { row in
            try MLDictionaryFeatureProvider(
                dictionary: row.inputs.mapValues { values in
                    MLFeatureValue(multiArray: MLMultiArray(MLShapedArray<Int32>(scalars: values, shape: [1, values.count])))
                })
        }
    }

    func close() { loaded = [:] }

    /// Returns the name by which Core ML is asked for a function: nil for the only one, which older packages have under no name.
    private static func functionName(_ signature: Signature, _ function: Function) throws -> String? {
        if signature.functions.count == 1 { return nil }
        if #available(iOS 18, *) { return function.name }
        throw RunnerRefused("\(signature.file) has \(signature.functions.count) lengths, and Core ML takes one before iOS 18")
    }

    /// Asks Core ML where it means to run each function, which it tells from iOS 17.4 on; nil where it does not.
    private static func plan(_ signature: Signature, _ place: URL, _ units: MLComputeUnits) -> UnitPlan? {
        guard #available(iOS 17.4, *) else { return nil }
        let names = signature.functions.map { try? functionName(signature, $0) }
        let functions = names.compactMap { ComputePlan.read(place, units, $0) }
        return functions.count == names.count ? UnitPlan(functions, units: ComputePlan.units) : nil
    }
}

extension MLModelConfiguration {
    fileprivate convenience init(_ units: MLComputeUnits, _ functionName: String?) {
        self.init()
        computeUnits = units
        if #available(iOS 18, *), let functionName { self.functionName = functionName }
    }
}

/// Where Core ML means to run the operations of a function.
@available(iOS 17.4, *)
private enum ComputePlan {
    static let cpu = "CPU"
    static let units = ["Neural Engine", "GPU", cpu]
    private static let limitS = 120.0

    /// Written before the semaphore is signalled, and read after.
    private final class Box: @unchecked Sendable {
        var operations: [UnitPlan.Operation]?
    }

    /// Returns a function's operations; nil where Core ML does not tell them, or takes minutes to.
    static func read(_ place: URL, _ units: MLComputeUnits, _ functionName: String?) -> [UnitPlan.Operation]? {
        // Core ML has this in Swift as a task alone. A runner works on a queue of its own, which may wait for one.
        dispatchPrecondition(condition: .notOnQueue(.main))
        let done = DispatchSemaphore(value: 0)
        let box = Box()
        Task.detached(priority: .userInitiated) {
            let configuration = MLModelConfiguration(units, functionName)
            if let plan = try? await MLComputePlan.load(contentsOf: place, configuration: configuration),
                case .program(let program) = plan.modelStructure,
                let function = functionName.map({ program.functions[$0] }) ?? program.functions.values.first
            {
                box.operations = operations(of: function.block, plan)
            }
            done.signal()
        }
        return done.wait(timeout: .now() + limitS) == .success ? box.operations : nil
    }

    private static func operations(of block: MLModelStructure.Program.Block, _ plan: MLComputePlan) -> [UnitPlan.Operation] {
        block.operations.flatMap { operation in
            let nested = operation.blocks.flatMap { operations(of: $0, plan) }
            // Constants run nowhere.
            guard let unit = plan.deviceUsage(for: operation).flatMap({ name($0.preferred) }) else { return nested }
            return [UnitPlan.Operation(unit, cost: plan.estimatedCost(of: operation)?.weight)] + nested
        }
    }

    private static func name(_ device: MLComputeDevice) -> String? {
        switch device {
        case .neuralEngine: units[0]
        case .gpu: units[1]
        case .cpu: cpu
        @unknown default: nil
        }
    }
}
