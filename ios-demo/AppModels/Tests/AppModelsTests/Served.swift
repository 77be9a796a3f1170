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
    ///   - hangsUpAfter: so many runs.
    ///   - units: compute units that the runtimes offer.
    func equipment(
        instead: [String: any Runtime] = [:], keys: [String]? = nil, unsigned: Bool = false, models: URL? = nil,
        phone: HostPhone? = nil, hangsUpAfter: Int? = nil, units: [String] = []
    ) throws -> Equipment {
        let runtimes = try ["litert", "executorch"].map {
            LinkedRuntime(try instead[$0] ?? runtime($0, hangsUpAfter: hangsUpAfter), computeUnits: units, threads: 1...2)
        }
        return Equipment(
            models: models ?? folder.appendingPathComponent("models"),
            policy: Policy(keys: try TrustedKeys(try keys ?? cases.texts("keys")), unsigned: unsigned), runtimes: runtimes,
            phone: phone ?? HostPhone([37]), runs: runs)
    }

    func usable() throws -> [ShelvedModel] { try Shelf.open(try equipment()).usable }
}

/// A runtime whose runs wait for a sign, so that a test decides what comes first; it counts runs that began and open files.
final class Halting: Runtime, @unchecked Sendable {
    /// How a phone is unlike the machine that serves the runtimes.
    struct Phone: Sendable {
        /// Opening a file takes so long, and its first run as well: weights are packed, caches are cold.
        var coldS = 0.0
        /// Closing a file takes so long: a runtime ends what it is busy with, and gives its memory back.
        var closingS = 0.0
        /// Compute units that compute something else.
        var wrongUnits: Set<String> = []
        /// Compute units that the runtime takes without a word, and runs the file on the CPU.
        var silentUnits: Set<String> = []
    }

    private let inner: SocketRuntime
    private let condition = NSCondition()
    private var isOpen = false
    private var count = 0
    private var files = 0
    private var most = 0
    private let free: Int
    private let phone: Phone
    let version: String

    /// - Parameters:
    ///   - free: how many runs need no sign.
    ///   - phone: what it is like.
    init(_ inner: SocketRuntime, version: String? = nil, isOpen: Bool = false, free: Int = 0, phone: Phone = Phone()) {
        self.inner = inner
        self.free = free
        self.phone = phone
        self.version = version ?? inner.version
        self.isOpen = isOpen
    }

    var name: String { inner.name }
    var backend: String { inner.backend }
    var runs: Int { condition.withLock { count } }
    /// Files that are open now.
    var openFiles: Int { condition.withLock { files } }
    /// The most that were open at a time.
    var mostOpenFiles: Int { condition.withLock { most } }

    func open(_ model: Model, _ options: RunnerOptions) throws -> any Runner {
        Thread.sleep(forTimeInterval: phone.coldS)
        let unit = options.computeUnits ?? "CPU"
        let runner = try inner.open(model, RunnerOptions(threads: options.threads))
        condition.withLock {
            files += 1
            most = max(most, files)
        }
        return Waiting(inner: runner, unit: unit, phone: phone, before: pass) { [self] in condition.withLock { files -= 1 } }
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

private final class Waiting: Runner, @unchecked Sendable {
    private let inner: any Runner
    private let unit: String
    private let phone: Halting.Phone
    private let before: @Sendable () -> Void
    private let after: @Sendable () -> Void
    private var isCold = true

    init(
        inner: any Runner, unit: String, phone: Halting.Phone, before: @escaping @Sendable () -> Void,
        after: @escaping @Sendable () -> Void
    ) {
        self.inner = inner
        self.unit = unit
        self.phone = phone
        self.before = before
        self.after = after
    }

    var delegate: String? { inner.delegate }
    var operations: (delegated: Int, all: Int)? { inner.operations }
    var shareByUnit: [String: Double]? { phone.silentUnits.contains(unit) ? ["CPU": 1] : [unit: 1] }

    func run(_ row: PaddedRow) throws -> [String: [Float]] {
        before()
        if isCold { Thread.sleep(forTimeInterval: phone.coldS) }
        isCold = false
        let outputs = try inner.run(row)
        // Half of the numbers, as of an accumulation that lost a block.
        return phone.wrongUnits.contains(unit) ? outputs.mapValues { $0.enumerated().map { $0 % 2 == 0 ? 0 : $1 } } : outputs
    }

    func close() {
        Thread.sleep(forTimeInterval: phone.closingS)
        inner.close()
        after()
    }
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

extension XCTestCase {
    func scratch() throws -> URL {
        let place = FileManager.default.temporaryDirectory.appendingPathComponent("pocketbert-\(UUID().uuidString)")
        try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
        addTeardownBlock { try? FileManager.default.removeItem(at: place) }
        return place
    }

    /// Copies the students into a folder of their own, so that they can be damaged.
    func copy(_ served: Served, _ damage: (URL) throws -> Void) throws -> URL {
        let place = try scratch().appendingPathComponent("models")
        try FileManager.default.copyItem(at: served.folder.appendingPathComponent("models"), to: place)
        try damage(place)
        return place
    }

    /// Copies the student `near`, with others of its kind beside it or in place of it, which nobody signs.
    ///
    /// - Parameter kin: by their recipes, facts in the signature of a student with the files of `near` for LiteRT; `random_weights` is
    ///   said beside it.
    func copyWithKin(_ served: Served, _ kin: [String: [String: Any]]) throws -> URL {
        let (models, place) = (served.folder.appendingPathComponent("models"), try scratch().appendingPathComponent("models"))
        let target = "litert-int8_dynamic"
        var index = try XCTUnwrap(
            try JSONSerialization.jsonObject(with: Data(contentsOf: models.appendingPathComponent("models.json"))) as? [String: Any])
        var entries = try XCTUnwrap(index["models"] as? [[String: Any]]).filter { $0["recipe"] as? String == "near" }
        let near = try XCTUnwrap(entries.first { $0["backend"] as? String == "litert" })
        try FileManager.default.createDirectory(at: place, withIntermediateDirectories: true)
        try FileManager.default.copyItem(at: models.appendingPathComponent("near"), to: place.appendingPathComponent("near"))
        for (recipe, facts) in kin {
            let folder = place.appendingPathComponent("\(recipe)/\(target)")
            if recipe != "near" {
                try FileManager.default.createDirectory(
                    at: folder.deletingLastPathComponent(), withIntermediateDirectories: true)
                try FileManager.default.copyItem(at: models.appendingPathComponent("near/\(target)"), to: folder)
                entries.append(near.merging(["recipe": recipe, "folder": "\(recipe)/\(target)"]) { $1 })
            }
            try change(folder, facts: facts.filter { $0.key != "random_weights" })
            try change(folder) { said in
                said["recipe"] = recipe
                said["random_weights"] = facts["random_weights"] ?? false
            }
        }
        index["models"] = entries
        try JSONSerialization.data(withJSONObject: index).write(to: place.appendingPathComponent("models.json"))
        return place
    }

    /// Gives a copied student other facts in its signature, which nobody signs any more.
    func change(_ folder: URL, facts: [String: Any]) throws {
        let file = folder.appendingPathComponent("signature.json")
        var said = try XCTUnwrap(try JSONSerialization.jsonObject(with: Data(contentsOf: file)) as? [String: Any])
        said.merge(facts) { $1 }
        let bytes = try JSONSerialization.data(withJSONObject: said)
        try bytes.write(to: file)
        try change(folder) { shipped in
            shipped["files"] = (shipped["files"] as? [[String: Any]])?.map { listed in
                if listed["path"] as? String != "signature.json" { return listed }
                return listed.merging(["sha256": Sha256.hex(of: bytes), "bytes": bytes.count]) { $1 }
            }
        }
    }

    /// Changes what a copied student says of itself, which nobody signs any more.
    func change(_ folder: URL, _ edit: (inout [String: Any]) -> Void) throws {
        try? FileManager.default.removeItem(at: folder.appendingPathComponent("model.sig"))
        let file = folder.appendingPathComponent("shipped.json")
        var said = try XCTUnwrap(try JSONSerialization.jsonObject(with: Data(contentsOf: file)) as? [String: Any])
        edit(&said)
        try JSONSerialization.data(withJSONObject: said).write(to: file)
    }
}
