import Foundation

@testable import Core

/// The real LiteRT or ExecuTorch, in a Python process behind a socket (`tests/apps/runtime_server.py`).
struct SocketRuntime: Runtime {
    let socket: String
    let backend: String
    let version: String
    /// The connection is closed after so many runs.
    var hangsUpAfter: Int?

    var name: String { backend == "litert" ? "LiteRT" : "ExecuTorch" }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        if let units = options.computeUnits { throw RunnerRefused("there are no compute units \(units) here; there is the CPU") }
        return try SocketRunner(socket, model, options.threads, hangsUpAfter)
    }
}

/// One call at a time, as the protocol has it.
private final class SocketRunner: Runner, @unchecked Sendable {
    private var connection: Int32
    private var left: Int?
    private var opened = Json.null

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
        opened = try ask(.object([("folder", .text(model.entry.folder)), ("threads", .literal("\(threads)"))]))
    }

    deinit { close() }

    var delegate: String? { opened.present("delegate")?.string }

    var operations: (delegated: Int, all: Int)? {
        guard let delegated = opened.present("ops_delegated")?.whole, let all = opened.present("ops_total")?.whole else { return nil }
        return (delegated, all)
    }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        left = left.map { $0 - 1 }
        if left == 0 { close() }
        let inputs = row.inputs.map { name, values in (key: name, value: Json.array(values.map { .literal("\($0)") })) }
        let answer = try ask(.object([("function", .text(row.function.name)), ("inputs", .object(inputs))]))
        guard case .object(let outputs)? = try answer.child("outputs") else { throw RunnerFailed("the runtime gave no outputs") }
        return Dictionary(
            uniqueKeysWithValues: outputs.map { name, value in
                guard case .array(let numbers) = value else { return (name, []) }
                return (name, numbers.map { Float($0.real ?? .nan) })
            })
    }

    private func ask(_ document: Json) throws -> Json {
        let line = Array("\(document.written())\n".utf8)
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
        let found = try Json.read(answer)
        if let error = try found.textOrNil("error") { throw RunnerFailed(error) }
        return found
    }

    func close() {
        if connection >= 0 { Foundation.close(connection) }
        connection = -1
    }
}
