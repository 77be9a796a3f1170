import Core
import Foundation

/// The real LiteRT or ExecuTorch, in a Python process behind a socket (`tests/apps/runtime_server.py`).
public struct SocketRuntime: Runtime {
    private let socket: String
    public let backend: String
    public let version: String
    private let hangsUpAfter: Int?

    /// Names the runtime that is asked for.
    ///
    /// - Parameters:
    ///   - socket: where the runtimes are served.
    ///   - backend: whose files it runs.
    ///   - version: the runtime's, as it is served.
    ///   - hangsUpAfter: the connection is closed after so many runs; nil leaves it open.
    public init(socket: String, backend: String, version: String, hangsUpAfter: Int? = nil) {
        self.socket = socket
        self.backend = backend
        self.version = version
        self.hangsUpAfter = hangsUpAfter
    }

    public var name: String { backend == "litert" ? "LiteRT" : "ExecuTorch" }

    public func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        if let unit = options.computeUnits, unit != "CPU" { throw RunnerRefused("there is no compute unit \(unit) here; there is the CPU") }
        return try SocketRunner(socket, model, options.threads, hangsUpAfter)
    }
}

/// What the server says; a field is absent where it has nothing to say of it.
private struct Reply: Decodable {
    let error: String?
    let delegate: String?
    let opsDelegated: Int?
    let opsTotal: Int?
    let outputs: [String: [Double]]?

    enum CodingKeys: String, CodingKey {
        case error, delegate, outputs
        case opsDelegated = "ops_delegated"
        case opsTotal = "ops_total"
    }
}

/// One call at a time, as the protocol has it.
private final class SocketRunner: Runner, @unchecked Sendable {
    private struct Opening: Encodable {
        let folder: String
        let threads: Int
    }

    private struct Row: Encodable {
        let function: String
        let inputs: [String: [Int32]]
    }

    private var connection: Int32
    private var left: Int?
    private(set) var delegate: String?
    private(set) var operations: (delegated: Int, all: Int)?

    init(_ place: String, _ model: Model, _ threads: Int, _ left: Int?) throws {
        self.left = left
        #if canImport(Glibc)
            connection = socket(AF_UNIX, Int32(SOCK_STREAM.rawValue), 0)
        #else
            connection = socket(AF_UNIX, SOCK_STREAM, 0)
        #endif
        var address = sockaddr_un()
        address.sun_family = sa_family_t(AF_UNIX)
        withUnsafeMutableBytes(of: &address.sun_path) { $0.copyBytes(from: place.utf8.prefix($0.count - 1)) }
        let result = withUnsafePointer(to: &address) { pointer in
            pointer.withMemoryRebound(to: sockaddr.self, capacity: 1) {
                connect(connection, $0, socklen_t(MemoryLayout<sockaddr_un>.size))
            }
        }
        if result != 0 { throw RunnerFailed("the runtimes are not served at \(place)") }
        let opened = try ask(Opening(folder: model.entry.folder, threads: threads))
        delegate = opened.delegate
        if let delegated = opened.opsDelegated, let all = opened.opsTotal { operations = (delegated, all) }
    }

    deinit { close() }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        left = left.map { $0 - 1 }
        if left == 0 { close() }
        guard let outputs = try ask(Row(function: row.function.name, inputs: row.inputs)).outputs else {
            throw RunnerFailed("the runtime gave no outputs")
        }
        return outputs.mapValues { $0.map { Float($0) } }
    }

    private func ask(_ document: some Encodable) throws -> Reply {
        let line = [UInt8](try JSONEncoder().encode(document)) + [UInt8(ascii: "\n")]
        var sent = 0
        while sent < line.count {
            let count = line.withUnsafeBytes { write(connection, $0.baseAddress! + sent, line.count - sent) }
            if count <= 0 { throw RunnerFailed("the connection to the runtime broke") }
            sent += count
        }
        var answer: [UInt8] = []
        var buffer = [UInt8](repeating: 0, count: 1 << 16)
        while answer.last != UInt8(ascii: "\n") {
            let count = read(connection, &buffer, buffer.count)
            if count <= 0 { throw RunnerFailed("the connection to the runtime ended") }
            answer += buffer[..<count]
        }
        let found = try JSONDecoder().decode(Reply.self, from: Data(answer))
        if let error = found.error { throw RunnerFailed(error) }
        return found
    }

    func close() {
        if connection >= 0 { Foundation.close(connection) }
        connection = -1
    }
}
