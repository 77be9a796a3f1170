import Core
import Foundation

/// A runtime that is linked into an app, with what it lets one choose.
public struct LinkedRuntime: Sendable {
    public let runtime: any Runtime
    /// Names of the compute units that it offers, the default first; empty where there is nothing to choose.
    public let computeUnits: [String]
    /// How many threads it can be told to use; one value where it cannot be told.
    public let threads: ClosedRange<Int>

    public init(_ runtime: any Runtime, computeUnits: [String] = [], threads: ClosedRange<Int> = 1...1) {
        self.runtime = runtime
        self.computeUnits = computeUnits
        self.threads = threads
    }
}

/// All that an app has beside its screens.
public struct Equipment: Sendable {
    /// The folder into which `pocketbert ship` puts models.
    public let models: URL
    public let policy: Policy
    public let runtimes: [LinkedRuntime]
    public let phone: any Phone
    /// The folder of runs, see `RunFolders`.
    public let runs: RunFolders

    public init(models: URL, policy: Policy, runtimes: [LinkedRuntime], phone: any Phone, runs: RunFolders) {
        self.models = models
        self.policy = policy
        self.runtimes = runtimes
        self.phone = phone
        self.runs = runs
    }

    /// Returns the runtime for a backend's files.
    public func runtime(for backend: String) -> LinkedRuntime? { runtimes.first { $0.runtime.backend == backend } }
}

/// A model that can be used, with the runtime that runs it.
public struct ShelvedModel: Sendable, Identifiable {
    public let model: Model
    public let linked: LinkedRuntime

    public init(_ model: Model, _ linked: LinkedRuntime) {
        self.model = model
        self.linked = linked
    }

    /// The folder of the model, by which requests name it.
    public var id: String { model.entry.folder }

    public var task: Task { Task(model.signature) }

    /// The prompts that a person can choose among; none where all are empty, as folders of models without prompts have them.
    public var prompts: [String] {
        let all = model.signature.prompts
        return all.values.allSatisfy(\.isEmpty) ? [] : all.keys.sorted()
    }

    /// Whether a person's own labels can be asked in place of its own.
    public var takesOwnLabels: Bool { ZeroShot.isPossible(model.signature) }

    /// Whether each of those can be decided by itself.
    public var decidesEach: Bool { ZeroShot.decidesEach(model.signature) }

    /// The recipe's name, which is what its maker calls it.
    public var name: String { model.entry.recipe }

    /// Returns the smallest of some models that can embed documents for this one's index, or nil: one of the same vector space with
    /// fewer parameters, which is faster and less exact. A file of the same recipe is another format of this one.
    public func faster(among models: [ShelvedModel]) -> ShelvedModel? {
        models.filter { $0.shares(model.signature.vectors) && $0.name != name && !$0.model.hasRandomWeights && $0.size < size }
            .min { $0.size < $1.size }
    }

    private var size: Int { model.signature.parameters }

    /// Whether vectors of it may lie in one index with those of a space; false where an older version has made one of both.
    private func shares(_ other: VectorSpace?) -> Bool {
        guard let other, let own = model.signature.vectors else { return false }
        return own.id == other.id && own.width == other.width && own.isUnitLength == other.isUnitLength
    }

    /// The compute units that a screen offers: those that the file may use, see `Model.allowedUnits`, and the runtime has here.
    public var units: [String] { model.allowedUnits.filter(has) }

    /// The compute units that only the self-test may use yet, each with a sentence that says what is known of it.
    public var untriedUnits: [(unit: String, known: String)] {
        let allowed = model.allowedUnits
        return model.untriedUnits.sorted { $0.key < $1.key }.filter { has($0.key) && !allowed.contains($0.key) }
            .map { (unit: $0.key, known: $0.value) }
    }

    private func has(_ unit: String) -> Bool { linked.computeUnits.isEmpty || linked.computeUnits.contains(unit) }

    /// What is done with a model, which decides the form of its screen.
    public enum Task: Sendable, Equatable {
        case labels
        case value
        case values
        case answer
        case search
        case entities

        init(_ signature: Signature) {
            switch signature.outputKind {
            case "embedding": self = .search
            case "value": self = .value
            case "values": self = .values
            case "token_logits": self = .entities
            case "spans": self = .answer
            // Be it one label of several, or each for itself.
            default: self = .labels
            }
        }
    }
}

/// What lies in an app's folder of models.
public struct Shelf: Sendable {
    /// A model that cannot be used, and the reason in a sentence.
    public struct Refused: Sendable, Identifiable {
        public let entry: Entry
        public let why: String

        public var id: String { entry.folder }
    }

    public let usable: [ShelvedModel]
    public let refused: [Refused]

    public init(usable: [ShelvedModel], refused: [Refused]) {
        self.usable = usable
        self.refused = refused
    }

    /// Whether a model is used that nobody signed.
    public var usesUnsigned: Bool { usable.contains { $0.model.signedBy == nil } }

    /// Reads the models: every byte of them, so call it off the main thread.
    ///
    /// - Throws: `NoModels` where none was shipped; `UnreadableFile` where the index cannot be read; `Cancelled`.
    public static func open(_ equipment: Equipment, _ cancellation: Cancellation = Cancellation()) throws -> Shelf {
        if !FileManager.default.fileExists(atPath: equipment.models.appendingPathComponent("models.json").path) { throw NoModels() }
        var usable: [ShelvedModel] = []
        var refused: [Refused] = []
        for listed in try Models.open(equipment.models, policy: equipment.policy, cancellation: cancellation) {
            switch listed {
            case .broken(let entry, let error): refused.append(Refused(entry: entry, why: error.sentence))
            case .usable(let model):
                if let linked = equipment.runtime(for: model.signature.backend) {
                    usable.append(ShelvedModel(model, linked))
                } else {
                    refused.append(Refused(entry: model.entry, why: noRuntime(model, equipment)))
                }
            }
        }
        return Shelf(usable: usable, refused: refused)
    }

    private static func noRuntime(_ model: Model, _ equipment: Equipment) -> String {
        let here = equipment.runtimes.map(\.runtime.name).joined(separator: " and ")
        return "\(model.entry.folder) is a file for \(model.signature.backend), and this app runs \(here)."
    }
}

/// No model was shipped into the app.
public struct NoModels: Error, CustomStringConvertible {
    public let description =
        "No model has been shipped into this app. Run `pocketbert ship` with your recipe, and build the app again."

    public init() {}
}
