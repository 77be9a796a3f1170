import Foundation

/// One run of the headless contract: reads the request, measures, and writes status and record. Whatever happens, the last
/// status says how it ended, unless the process is killed; then the status stops beating.
public final class HeadlessRun {
    private struct Refused: Error {
        let why: String
    }

    private struct NotWritten: Error {
        let why: String
    }

    private let folder: URL
    private let models: () throws -> [Listed]
    private let runtimes: [any Runtime]
    private let phone: any Phone
    private let cancellation: Cancellation

    /// Prepares a run.
    ///
    /// - Parameters:
    ///   - folder: of the run; its name is the run's.
    ///   - models: opens the models that were shipped; `Models.open`.
    ///   - runtimes: those that the app has.
    ///   - phone: what the app knows of the phone.
    ///   - cancellation: for giving up from another thread.
    public init(
        folder: URL, models: @escaping () throws -> [Listed], runtimes: [any Runtime], phone: any Phone,
        cancellation: Cancellation = Cancellation()
    ) {
        self.folder = folder
        self.models = models
        self.runtimes = runtimes
        self.phone = phone
        self.cancellation = cancellation
    }

    private var name: String { folder.lastPathComponent }

    /// Runs to an end, in the thread that calls, and returns the last status.
    public func run() -> BenchmarkStatus {
        var state = BenchmarkStatus.State.finished
        var message: String?
        let status = StatusFile(folder)
        do {
            status.tell(false, 0, "reading the request")
            try write(Headless.record, try measured(try request(), status))
        } catch {
            (state, message) = Self.end(error)
        }
        return status.end(state, message)
    }

    private static func end(_ error: any Error) -> (BenchmarkStatus.State, String) {
        switch error {
        case let error as Refused: (.refused, error.why)
        case let error as any Unusable: (.refused, error.description)
        case let error as RunnerRefused: (.refused, error.description)
        case is Cancelled: (.cancelled, "it was cancelled")
        case let error as OutOfTime: (.outOfTime, error.description)
        case let error as TooHot: (.tooHot, error.description)
        case let error as RunnerFailed: (.failed, error.description)
        case let error as NotWritten: (.failed, "a file cannot be written: \(error.why)")
        // A runtime's own errors are not known here, and whoever waits has to learn of them.
        default: (.failed, "\(type(of: error)): \(error)")
        }
    }

    private func request() throws -> BenchmarkRequest {
        let request: BenchmarkRequest
        do {
            request = try Folder(root: folder).parse(Headless.request, "benchmark-request") { try BenchmarkRequest($0) }
        } catch let error as UnreadableFile {
            throw Refused(why: error.description.replacingOccurrences(of: "; ship the model again", with: ""))
        }
        if ExactText(request.runId) != ExactText(name) {
            throw Refused(why: "request.json is of run \(request.runId), and lies in the folder \(name)")
        }
        return request
    }

    private func measured(_ request: BenchmarkRequest, _ status: StatusFile) throws -> Json {
        let model = try model(request.model)
        guard let runtime = runtimes.first(where: { $0.backend == model.signature.backend }) else {
            let here = runtimes.map(\.name).listed
            throw Refused(why: "there is no runtime for \(model.signature.backend) here; there are \(here)")
        }
        if let length = request.lengths.first(where: { $0 > model.signature.maxLength }) {
            throw Refused(why: "length \(length) does not fit; \(model.file) takes at most \(model.signature.maxLength) tokens")
        }
        return try Benchmark(phone: phone, runtime: runtime, cancellation: cancellation, tell: status.tell).run(request, model)
    }

    private func model(_ wanted: String) throws -> Model {
        let all = try models()
        for listed in all where ExactText(listed.entry.folder) == ExactText(wanted) {
            switch listed {
            case .broken(_, let error): throw error
            case .usable(let model): return model
            }
        }
        throw Refused(why: "\(wanted) was not shipped; there are: \(all.map(\.entry.folder).joined(separator: ", "))")
    }

    private func write(_ name: String, _ json: Json) throws {
        do {
            try Folder(root: folder).write(name, Array("\(json.written())\n".utf8))
        } catch {
            throw NotWritten(why: "\(error)")
        }
    }
}
