import AppParts
import Core
import ExecuTorch
import Foundation

/// ExecuTorch with XNNPACK, from the Swift package that the project names.
///
/// Its frameworks are built with XNNPACK's weight cache on, so methods that share weights pack them once
/// (`tools/cmake/preset/apple_common.cmake` of v1.4.1: `EXECUTORCH_XNNPACK_ENABLE_WEIGHT_CACHE`).
struct ExecuTorchRuntime: Runtime {
    /// The release that `project.toml` pins; the library does not tell.
    static let release = "1.4.1"
    private static let unit = "CPU"
    private static let mostThreads = 8

    let name = "ExecuTorch"
    let backend = "executorch"
    let version = Self.release

    /// The runtime with what it lets one choose.
    var linked: LinkedRuntime {
        let cores = ProcessInfo.processInfo.activeProcessorCount
        return LinkedRuntime(self, threads: 1...max(1, min(cores, Self.mostThreads)))
    }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        if let unit = options.computeUnits, unit != Self.unit {
            throw RunnerRefused("there is no compute unit \(unit) in ExecuTorch here; its files run through XNNPACK, on the CPU")
        }
        if MinimumVersion(model.signature.minimumRuntime, linked: version) == .tooOld {
            throw RunnerRefused("\(model.file) needs ExecuTorch \(model.signature.minimumRuntime), and this app has \(version)")
        }
        if !linked.threads.contains(options.threads) {
            throw RunnerRefused("ExecuTorch cannot use \(options.threads) threads here; there are \(linked.threads.upperBound)")
        }
        do {
            guard let file = model.onDisk else { throw RunnerFailed("\(model.file) lies in no folder") }
            return try ExecuTorchRunner(file, model, options)
        } catch let error as RunnerRefused {
            throw error
        } catch let error as RunnerFailed {
            throw error
        } catch {
            throw RunnerFailed("ExecuTorch cannot open \(model.file): \(error.localizedDescription)")
        }
    }
}

/// A program that is mapped into memory, with all of its methods loaded.
private final class ExecuTorchRunner: Runner, @unchecked Sendable {
    /// ExecuTorch's threads are one pool for the whole process (`extension/threadpool/threadpool.cpp`), whose address every
    /// XNNPACK runtime keeps (`backends/xnnpack/runtime/XNNCompiler.cpp`).
    private static let pool = SharedPool<Module>(
        read: { pocketbertThreads() > 0 ? Int(pocketbertThreads()) : nil }, set: { pocketbertUseThreads(UInt32($0)) })
    /// A method of every program of the pipeline that gives the rows of its table of tokens.
    private static let sizeOfVocabulary = "get_vocab_size"

    private let program: SharedPool<Module>.Opened
    private let vocabulary: Int
    let delegate: String?
    // The library tells a program's instructions, of which a delegate's whole graph is one.
    let operations: (delegated: Int, all: Int)? = nil
    // One call at a time, as the protocol has it.
    private var prepared = PreparedRow<[ExecuTorch.Tensor<Int32>]>()

    init(_ file: URL, _ model: Model, _ options: RunnerOptions) throws {
        let functions = model.signature.functions
        program = try Self.pool.open(model.entry.folder, options) {
            let module = Module(filePath: file.path, loadMode: .mmap)
            try module.load()
            for function in functions { try module.load(function.name) }
            return module
        }
        do {
            (delegate, vocabulary) = try Self.pool.use(program) { module in
                let backends = try module.methodMetadata(functions[0].name).backendNames.map { $0 == "XnnpackBackend" ? "XNNPACK" : $0 }
                guard let size = try module.execute(Self.sizeOfVocabulary).first, size.isInteger else {
                    throw RunnerFailed("the program does not tell the size of its vocabulary")
                }
                return (backends.isEmpty ? nil : backends.sorted().joined(separator: " and "), Int(size.integer))
            }
        } catch {
            Self.pool.close(program)
            throw error
        }
    }

    deinit { close() }

    var poolThreads: Int? { Self.pool.threads }

    func prepare(_ row: PaddedRow) throws {
        try Self.pool.prepare(program)
        _ = inputs(row)
    }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        // An id outside an int8 table ends the whole process in the kernel.
        let ids = row.inputs["input_ids"] ?? []
        if let odd = ids.first(where: { $0 < 0 || Int($0) >= vocabulary }) {
            throw RunnerFailed("the id \(odd) is outside of the table, which has \(vocabulary) rows")
        }
        let inputs = inputs(row)
        // A benchmark runs for minutes in one block of a queue, and what each row leaves would be freed at its end.
        return try autoreleasepool {
            try Self.pool.use(program) { module in
                do {
                    return try read(try module.execute(row.function.name, inputs), row.function)
                } catch let error as RunnerFailed {
                    throw error
                } catch {
                    throw RunnerFailed("ExecuTorch gave up: \(error.localizedDescription)")
                }
            }
        }
    }

    private func inputs(_ row: PaddedRow) -> [ExecuTorch.Tensor<Int32>] {
        prepared.inputs(row) { row in
            row.function.inputs.map { ExecuTorch.Tensor<Int32>(row.inputs[$0.name] ?? [], shape: [1, row.length]) }
        }
    }

    private func read(_ outputs: [Value], _ function: Function) throws -> [String: [Float]] {
        if outputs.count != function.outputs.count {
            throw RunnerFailed("ExecuTorch gave \(outputs.count) outputs, and the file promises \(function.outputs.count)")
        }
        return try Dictionary(
            uniqueKeysWithValues: zip(function.outputs, outputs).map { tensor, value in
                guard let found: ExecuTorch.Tensor<Float> = value.tensor() else {
                    throw RunnerFailed("ExecuTorch gave no \(tensor.name) of 32-bit numbers")
                }
                return (tensor.name, found.scalars())
            })
    }

    func close() { Self.pool.close(program) }
}
