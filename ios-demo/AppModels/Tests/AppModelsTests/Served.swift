import AppModels
import AppParts
import CoreTestSupport
import Foundation
import XCTest

@testable import Core

/// The real students with the real runtimes behind a socket, as equipment of an app (`tests/apps/end_to_end.py`).
struct Served {
    let folder: URL
    let cases: Json

    /// Finds the folder of the students; skips the test where it is not named.
    init() throws {
        guard let folder = ProcessInfo.processInfo.environment["POCKETBERT_ENDTOEND"], !folder.isEmpty else {
            throw XCTSkip("`make apps-check` makes the students and serves the runtimes")
        }
        self.folder = URL(fileURLWithPath: folder)
        cases = try Json.read([UInt8](try Data(contentsOf: self.folder.appendingPathComponent("cases.json"))))
    }

    /// The folder of the runs that these tests carry out; Python checks what they leave there.
    var runs: RunFolders { RunFolders(root: folder.appendingPathComponent("runs-appmodels")) }

    func runtime(_ backend: String, hangsUpAfter: Int? = nil) throws -> SocketRuntime {
        SocketRuntime(
            socket: folder.deletingLastPathComponent().appendingPathComponent("runtime.sock").path, backend: backend,
            version: try cases.text(backend), hangsUpAfter: hangsUpAfter)
    }

    /// Returns an app's equipment.
    ///
    /// - Parameters:
    ///   - instead: runtimes in place of those that are served, by their backends.
    ///   - keys: those that are trusted; nil for those that signed the models.
    ///   - unsigned: whether a model without a signature is taken.
    ///   - models: their folder; nil for the students'.
    ///   - phone: nil for a warm one.
    func equipment(
        instead: [String: any Runtime] = [:], keys: [String]? = nil, unsigned: Bool = false, models: URL? = nil,
        phone: HostPhone? = nil, hangsUpAfter: Int? = nil
    ) throws -> Equipment {
        let runtimes = try ["litert", "executorch"].map {
            LinkedRuntime(try instead[$0] ?? runtime($0, hangsUpAfter: hangsUpAfter), threads: 1...2)
        }
        return Equipment(
            models: models ?? folder.appendingPathComponent("models"),
            policy: Policy(keys: try TrustedKeys(try keys ?? cases.texts("keys")), unsigned: unsigned), runtimes: runtimes,
            phone: phone ?? HostPhone([37]), runs: runs)
    }

    func usable() throws -> [ShelvedModel] { try Shelf.open(try equipment()).usable }
}

/// A runtime whose runs wait for a sign, so that a test decides what comes first; it counts those that began.
final class Halting: Runtime, @unchecked Sendable {
    private let inner: SocketRuntime
    private let condition = NSCondition()
    private var isOpen = false
    private var count = 0
    private let free: Int
    let version: String

    /// - Parameter free: how many runs need no sign.
    init(_ inner: SocketRuntime, version: String? = nil, isOpen: Bool = false, free: Int = 0) {
        self.inner = inner
        self.free = free
        self.version = version ?? inner.version
        self.isOpen = isOpen
    }

    var name: String { inner.name }
    var backend: String { inner.backend }
    var runs: Int { condition.withLock { count } }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        Waiting(inner: try inner.open(model, options), before: pass)
    }

    /// Lets all runs go on.
    func release() {
        condition.withLock { isOpen = true }
        condition.broadcast()
    }

    private func pass() {
        condition.withLock {
            count += 1
            guard count > free else { return }
            while !isOpen { condition.wait() }
        }
    }
}

private struct Waiting: Runner {
    let inner: any Runner
    let before: @Sendable () -> Void

    var delegate: String? { inner.delegate }
    var operations: (delegated: Int, all: Int)? { inner.operations }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        before()
        return try inner.run(row)
    }

    func close() { inner.close() }
}

extension NSCondition {
    fileprivate func withLock<Value>(_ work: () -> Value) -> Value {
        lock()
        defer { unlock() }
        return work()
    }
}

/// Waits until something is so; fails the test where it never is.
@MainActor
func eventually(_ what: String, _ isSo: () -> Bool) async throws {
    for _ in 0..<20_000 {
        if isSo() { return }
        try await Task.sleep(nanoseconds: 5_000_000)
    }
    XCTFail("it never came to be that \(what)")
}
