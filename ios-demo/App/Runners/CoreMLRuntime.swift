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

    private func place(of model: Model) throws -> URL {
        guard let package = model.onDisk else { throw RunnerFailed("\(model.file) lies in no folder") }
        return try compiled.find(model.entry.digest) { try MLModel.compileModel(at: package) }
    }
}

/// One package; each of its functions is loaded when a row first needs it, since each is prepared for the chip by itself.
private final class CoreMLRunner: Runner, @unchecked Sendable {
    private let signature: Signature
    private let place: URL
    private let units: MLComputeUnits
    // One call at a time, as the protocol has it.
    private var loaded: [String: MLModel] = [:]
    // Asking takes about as long as loading, so it is asked when somebody wants to know, which is after the measuring.
    private lazy var plan = ComputePlan.read(place, units, try? Self.functionName(signature, signature.functions[0]))

    init(_ signature: Signature, _ place: URL, _ units: MLComputeUnits) throws {
        self.signature = signature
        self.place = place
        self.units = units
        // What cannot be loaded is said now, and not with the first row.
        _ = try self.model(signature.functions[0])
    }

    var delegate: String? { plan?.busiest }

    var operations: (delegated: Int, all: Int)? { plan.map { ($0.delegated, $0.all) } }
    var operationsByUnit: [String: Int]? { plan?.byUnit }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        // A benchmark runs for minutes in one block of a queue, and what each row leaves would be freed at its end.
        try autoreleasepool { try compute(row) }
    }

    private func compute(_ row: PaddedRow) throws -> [String: [Float]] {
        let model = try model(row.function)
        let inputs = row.inputs.mapValues { values in
            MLFeatureValue(multiArray: MLMultiArray(MLShapedArray<Int32>(scalars: values, shape: [1, values.count])))
        }
        let outputs: any MLFeatureProvider
        do {
            outputs = try model.prediction(from: try MLDictionaryFeatureProvider(dictionary: inputs))
        } catch {
            throw RunnerFailed("Core ML gave up: \(error.localizedDescription)")
        }
        return try Dictionary(
            uniqueKeysWithValues: row.function.outputs.map { tensor in
                guard let array = outputs.featureValue(for: tensor.name)?.multiArrayValue, array.dataType == .float32 else {
                    throw RunnerFailed("Core ML gave no \(tensor.name) of 32-bit numbers")
                }
                // An output may have gaps between its rows; a shaped array reads it without them.
                return (tensor.name, MLShapedArray<Float>(array).scalars)
            })
    }

    func close() { loaded = [:] }

    private func model(_ function: Function) throws -> MLModel {
        if let model = loaded[function.name] { return model }
        let name = try Self.functionName(signature, function)
        let model = try MLModel(contentsOf: place, configuration: MLModelConfiguration(units, name))
        loaded[function.name] = model
        return model
    }

    /// Returns the name by which Core ML is asked for a function: nil for the only one, which older packages have under no name.
    private static func functionName(_ signature: Signature, _ function: Function) throws -> String? {
        if signature.functions.count == 1 { return nil }
        if #available(iOS 18, *) { return function.name }
        throw RunnerRefused("\(signature.file) has \(signature.functions.count) lengths, and Core ML takes one before iOS 18")
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
private struct ComputePlan {
    private(set) var neuralEngine = 0
    private(set) var gpu = 0
    private(set) var cpu = 0

    var all: Int { neuralEngine + gpu + cpu }
    var delegated: Int { neuralEngine + gpu }
    var byUnit: [String: Int] { ["Neural Engine": neuralEngine, "GPU": gpu, "CPU": cpu] }

    /// The device with the most operations.
    var busiest: String {
        let devices = [("Neural Engine", neuralEngine), ("GPU", gpu), ("CPU", cpu)]
        return devices.reduce(devices[0]) { $1.1 > $0.1 ? $1 : $0 }.0
    }

    /// Asks Core ML, which tells it from iOS 17.4 on; nil where it does not.
    static func read(_ place: URL, _ units: MLComputeUnits, _ functionName: String?) -> ComputePlan? {
        guard #available(iOS 17.4, *) else { return nil }
        let done = DispatchSemaphore(value: 0)
        let answer = Box()
        // A runner is opened on a queue, which may wait; the plan is asked for in a task, which may not.
        Task.detached {
            let configuration = MLModelConfiguration(units, functionName)
            if let plan = try? await MLComputePlan.load(contentsOf: place, configuration: configuration) {
                answer.plan = count(plan, functionName)
            }
            done.signal()
        }
        done.wait()
        return answer.plan
    }

    /// Written before the semaphore is signalled, and read after.
    private final class Box: @unchecked Sendable {
        var plan: ComputePlan?
    }

    @available(iOS 17.4, *)
    private static func count(_ plan: MLComputePlan, _ functionName: String?) -> ComputePlan? {
        guard case .program(let program) = plan.modelStructure,
            let function = functionName.map({ program.functions[$0] }) ?? program.functions.values.first
        else { return nil }
        var counts = ComputePlan()
        for operation in function.block.operations {
            // Constants run nowhere.
            guard let usage = plan.deviceUsage(for: operation) else { continue }
            switch usage.preferred {
            case .neuralEngine: counts.neuralEngine += 1
            case .gpu: counts.gpu += 1
            case .cpu: counts.cpu += 1
            @unknown default: continue
            }
        }
        return counts.all > 0 ? counts : nil
    }
}
