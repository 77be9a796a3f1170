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
            return try ExecuTorchRunner(file, model.signature, threads: options.threads)
        } catch let error as RunnerFailed {
            throw error
        } catch {
            throw RunnerFailed("ExecuTorch cannot open \(model.file): \(error.localizedDescription)")
        }
    }
}

/// The threads of ExecuTorch: one pool for the whole process. A program that is loaded keeps the address of the pool, so all
/// of them are put away before the pool is made anew, and loaded again when they are next run.
private final class Pool: @unchecked Sendable {
    static let shared = Pool()
    private let lock = NSLock()
    // All of it under the lock.
    private var threads = 0
    private var loaded: [ObjectIdentifier: Program] = [:]

    /// A program of a runner; nil while it is put away.
    final class Program {
        fileprivate(set) var module: Module?
    }

    /// Does work with so many threads, while nothing else runs.
    func use<Value>(_ count: Int, _ work: () throws -> Value) throws -> Value {
        lock.lock()
        defer { lock.unlock() }
        if count != threads {
            for program in loaded.values { program.module = nil }
            loaded = [:]
            if !pocketbertUseThreads(UInt32(count)) { throw RunnerFailed("ExecuTorch has no pool of threads") }
            threads = count
        }
        return try work()
    }

    /// Keeps a program until the pool changes; called from within `use`.
    func keep(_ module: Module, as program: Program) {
        program.module = module
        loaded[ObjectIdentifier(program)] = program
    }

    /// Puts a program away that nobody needs any more.
    func remove(_ program: Program) {
        lock.lock()
        defer { lock.unlock() }
        program.module = nil
        loaded[ObjectIdentifier(program)] = nil
    }
}

/// A program that is mapped into memory.
private final class ExecuTorchRunner: Runner, @unchecked Sendable {
    /// A method of every program of the pipeline that gives the rows of its table of tokens.
    private static let sizeOfVocabulary = "get_vocab_size"

    private let file: URL
    private let signature: Signature
    private let threads: Int
    private let program = Pool.Program()
    // Under the lock of the pool.
    private var isClosed = false
    private(set) var vocabulary = 0
    private(set) var delegate: String?
    // The library tells a program's instructions, of which a delegate's whole graph is one.
    let operations: (delegated: Int, all: Int)? = nil

    init(_ file: URL, _ signature: Signature, threads: Int) throws {
        self.file = file
        self.signature = signature
        self.threads = threads
        try Pool.shared.use(threads) {
            let module = try load()
            let backends = try module.methodMetadata(signature.functions[0].name).backendNames
            delegate =
                backends.isEmpty ? nil : backends.map { $0 == "XnnpackBackend" ? "XNNPACK" : $0 }.sorted().joined(separator: " and ")
            guard let size = try module.execute(Self.sizeOfVocabulary).first, size.isInteger else {
                throw RunnerFailed("the program does not tell the size of its vocabulary")
            }
            vocabulary = Int(size.integer)
        }
    }

    deinit { close() }

    private func load() throws -> Module {
        if let module = program.module { return module }
        let module = Module(filePath: file.path, loadMode: .mmap)
        try module.load()
        for function in signature.functions { try module.load(function.name) }
        Pool.shared.keep(module, as: program)
        return module
    }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        // An id outside an int8 table ends the whole process in the kernel.
        let ids = row.inputs["input_ids"] ?? []
        if let odd = ids.first(where: { $0 < 0 || Int($0) >= vocabulary }) {
            throw RunnerFailed("the id \(odd) is outside of the table, which has \(vocabulary) rows")
        }
        // A benchmark runs for minutes in one block of a queue, and what each row leaves would be freed at its end.
        return try autoreleasepool { try Pool.shared.use(threads) { try compute(row) } }
    }

    private func compute(_ row: PaddedRow) throws -> [String: [Float]] {
        if isClosed { throw RunnerFailed("the model was closed") }
        let inputs = row.function.inputs.map { ExecuTorch.Tensor<Int32>(row.inputs[$0.name] ?? [], shape: [1, row.length]) }
        let outputs: [Value]
        do {
            outputs = try load().execute(row.function.name, inputs)
        } catch {
            throw RunnerFailed("ExecuTorch gave up: \(error.localizedDescription)")
        }
        return try read(outputs, row.function)
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

    func close() {
        Pool.shared.remove(program)
        isClosed = true
    }
}
