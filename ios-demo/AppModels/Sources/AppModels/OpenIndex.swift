import AppParts
import Core
import Foundation

extension Signature {
    /// The prompt of what is looked for. A model that has prompts embeds what is looked for with the one named `query`, what is
    /// searched with `document` or `passage`, and with the default one where there is none of these names.
    var queryPrompt: String? { prompts["query"].map { _ in "query" } }

    /// The prompt of what is searched, as `queryPrompt` says.
    var documentPrompt: String? { ["document", "passage"].first { prompts[$0] != nil } }
}

/// An index that is searched, off the main thread and by one call at a time.
actor OpenIndex {
    /// Texts that are sorted by length together.
    private static let window = 512
    /// Texts that are kept together, and lost together by a kill.
    private static let batch = 32
    private static let folder = "index"

    /// Whether it is of a person's own texts.
    nonisolated let isOwn: Bool
    private var index: FlatIndex?

    private init(_ open: @Sendable () throws -> FlatIndex, isOwn: Bool) throws {
        self.isOwn = isOwn
        index = try open()
    }

    /// Opens the index of a person's own texts, and makes it where there is none; the texts are kept, so a damaged one is made anew.
    init(own home: URL, _ model: Model) throws {
        let (spec, width) = try Self.spec(model)
        let folder = home.appendingPathComponent(spec.space)
        let open: @Sendable () throws -> FlatIndex = {
            do {
                return try FlatIndex.openOrCreate(folder, spec, width: width)
            } catch let error as IndexRefused where error.reason == .damaged {
                try FileManager.default.removeItem(at: folder)
                return try FlatIndex.openOrCreate(folder, spec, width: width)
            }
        }
        try self.init(open, isOwn: true)
    }

    /// A file of an older version, whose vectors no contract describes, is a space of its own.
    private static func spec(_ model: Model) throws -> (IndexSpec, width: Int) {
        let signature = model.signature
        let madeBy = "\(signature.backend)-\(signature.scheme)"
        let (document, query) = (signature.documentPrompt, signature.queryPrompt)
        if let vectors = signature.vectors {
            return (IndexSpec(vectors, .int8, documentPrompt: document, queryPrompt: query, madeBy: madeBy), vectors.width)
        }
        guard let width = signature.functions.first?.outputs.first?.shape.last ?? nil else {
            throw RunnerFailed("\(signature.file) gives no embedding")
        }
        let spec = IndexSpec(
            space: String(model.entry.digest.prefix(16)), width: width, storage: .float32, scales: nil, isUnitLength: true,
            documentPrompt: document, queryPrompt: query, madeBy: madeBy)
        return (spec, width)
    }

    /// Opens the ready index that was shipped with a model, or beside all of them; returns nil where there is none of its space.
    ///
    /// - Throws: `IndexRefused` where it is damaged.
    static func shipped(_ model: Model) throws -> OpenIndex? {
        guard let file = model.onDisk, let space = model.signature.vectors else { return nil }
        let recipe = file.deletingLastPathComponent().deletingLastPathComponent()
        for place in [recipe, recipe.deletingLastPathComponent()] {
            let folder = place.appendingPathComponent(folder)
            guard FlatIndex.isThere(folder) else { continue }
            do {
                return try OpenIndex({ try FlatIndex(folder, space) }, isOwn: false)
            } catch let error as IndexRefused where error.reason == .otherSpace {
                continue
            }
        }
        return nil
    }

    /// Removes the indexes of texts that a person has given up.
    static func forget(_ home: URL) {
        for one in (try? FileManager.default.contentsOfDirectory(atPath: home.path)) ?? [] where isSpace(one) {
            try? FileManager.default.removeItem(at: home.appendingPathComponent(one))
        }
    }

    /// The id of a space is the folder's name.
    private static func isSpace(_ name: String) -> Bool { name.utf8.count == 16 && name.allSatisfy(\.isHexDigit) }

    /// How many passages can be found.
    var count: Int { index?.count ?? 0 }

    /// Returns the nearest passages; none where it was closed meanwhile.
    func search(_ query: [Float], top: Int) throws -> [Hit] { try index?.search(query, top: top) ?? [] }

    /// Gives up the files.
    func close() { index = nil }

    private func opened() throws -> FlatIndex {
        guard let index else { throw CancellationError() }
        return index
    }

    private func add(_ passages: [Passage]) throws { try opened().add(passages) }

    private func missing(_ texts: [(text: String, id: String)]) throws -> [(text: String, id: String)] {
        let index = try opened()
        var seen: Set<String> = []
        return try texts.filter { one in
            if !seen.insert(one.id).inserted { return false }
            return try !index.has(one.id, one.text)
        }
    }

    /// Puts texts into the index, and removes what is none of them; what is there already is passed over, so that it goes on where it
    /// was left, be it by a kill. Cancelled with the task.
    ///
    /// - Parameters:
    ///   - texts: those.
    ///   - worker: embeds them; its model's vectors are of the index's space.
    ///   - rest: says why it has to rest now.
    ///   - restSeconds: after which that is asked again.
    ///   - tell: is called with how many texts are there, and why it rests.
    func fill(
        _ texts: OwnTexts, _ worker: Worker, rest: @MainActor @Sendable () -> Rest?, restSeconds: Double,
        tell: @MainActor @Sendable (_ done: Int, _ rest: Rest?) async throws -> Void
    ) async throws {
        let prompt = worker.shelved.model.signature.documentPrompt
        let reading = try texts.read()
        var wanted: [UInt64] = []
        while wanted.count < SearchModel.mostTexts,
            case let window = try reading.next(min(Self.window, SearchModel.mostTexts - wanted.count)), !window.isEmpty
        {
            let numbers = window.map(OwnTexts.number)
            wanted += numbers
            let missing = try missing(zip(window, numbers).map { (text: $0, id: OwnTexts.id($1)) })
            var done = wanted.count - missing.count
            // Texts of one length run one after the other: a runtime keeps what it has made ready for that length.
            let lengths = missing.isEmpty ? [] : try await worker.tokens(missing.map(\.text), prompt: prompt)
            let order = missing.indices.sorted { (lengths[$0], $0) < (lengths[$1], $1) }
            for first in stride(from: 0, to: order.count, by: Self.batch) {
                while let why = await rest() {
                    try await tell(done, why)
                    try await Task.sleep(nanoseconds: UInt64(restSeconds * 1e9))
                }
                try await tell(done, nil)
                var passages: [Passage] = []
                for place in order[first..<min(first + Self.batch, order.count)] {
                    let (text, id) = missing[place]
                    guard case .embedding(let embedding) = try await worker.ask(Question(text, prompt: prompt)).answer else { return }
                    passages.append(Passage(id: id, text: text, embedding: embedding))
                }
                try add(passages)
                done += passages.count
            }
            try await tell(wanted.count, nil)
        }
        try Task.checkCancellation()
        try clean(Set(wanted))
    }

    private func clean(_ wanted: Set<UInt64>) throws {
        let index = try opened()
        try index.retain { UInt64($0, radix: 16).map(wanted.contains) ?? false }
        // What was removed takes room, and time in every search.
        if index.rows > 2 * index.count { try index.compact() }
    }
}
