import Foundation

/// What came out, and how long it took.
public struct Answered<Value: Sendable>: Sendable {
    public let value: Value
    /// Tokens of the row, or of the longest of several; special ones included.
    public let tokens: Int
    /// The length at which it ran; of several rows the longest.
    public let length: Int
    /// From the text to padded arrays.
    public let tokenizeMs: Double
    /// In the runtime.
    public let inferenceMs: Double
}

/// How far a golden row is off.
public struct GoldenResult: Sendable {
    public let row: GoldenRow
    public let sameIds: Bool
    /// Nil where its ids differ, or an output is zero, not finite or of another size.
    public let cosine: Double?
}

/// What the golden rows show of a file on this phone.
public struct GoldenVerdict: Sendable {
    public let rows: [GoldenResult]
    public let worstCosine: Double?
    /// Signal to quantisation noise over all rows; nil where a row cannot be compared.
    public let sqnrDb: Double?
    /// What is wrong, in sentences; empty where the file is what was verified.
    public let failures: [String]
}

/// A model with its tokenizer and a runner: from a text to what a person reads. One call at a time, off the main thread.
public final class Student: Sendable {
    /// Windows over a passage share a third of their tokens; as `overlap` of the pipeline, and run_squad.py.
    private static let overlap = 3

    public let model: Model
    private let tokenizer: Tokenizer
    private let runner: any Runner

    public init(_ model: Model, _ tokenizer: Tokenizer, _ runner: any Runner) {
        self.model = model
        self.tokenizer = tokenizer
        self.runner = runner
    }

    /// Opens a model: reads its tokenizer, and its file in a runtime.
    public static func open(_ model: Model, _ runtime: any Runtime, _ options: RunnerOptions = RunnerOptions()) throws -> Student {
        let tokenizer = try model.tokenizer()
        return Student(model, tokenizer, try runtime.open(model, options))
    }

    /// Gives the runner's memory back; the student can do nothing after it.
    public func close() { runner.close() }

    private var signature: Signature { model.signature }
    private var labels: [String] { signature.labels ?? [] }

    /// Returns the embedding of a text, of unit length.
    ///
    /// - Parameters:
    ///   - text: the text.
    ///   - prompt: name of the prompt before the text; nil for the model's default one, an empty name for none.
    ///   - cancellation: gives up a long text word by word.
    /// - Throws: `NoSuchPrompt` where the model has none of that name.
    public func embedding(_ text: String, prompt: String? = nil, cancellation: Cancellation? = nil) throws -> Answered<[Float]> {
        try one("embedding", text, nil, cancellation, prompt: prompt) { _, output in output }
    }

    /// Returns each label with its probability, the most probable first; of a model that decides each label by itself, also
    /// whether it is given.
    public func labels(_ first: String, _ second: String? = nil, cancellation: Cancellation? = nil) throws -> Answered<[Share]> {
        if signature.outputKind != "multi_label" {
            return try one("logits", first, second, cancellation) { _, output in try Outputs.labels(labels, output) }
        }
        return try one("multi_label", first, second, cancellation) { _, output in
            try Outputs.eachLabel(labels, output, thresholds: signature.thresholds)
        }
    }

    /// Returns the value of a regression behind its activation, such as how alike two texts are.
    public func value(_ first: String, _ second: String? = nil, cancellation: Cancellation? = nil) throws -> Answered<Float> {
        try one("value", first, second, cancellation) { _, output in
            guard let value = output.first else { throw RunnerFailed("the runtime gave no number") }
            return activated(value)
        }
    }

    /// Returns the values of a regression that gives several, each behind the activation, in the file's order.
    public func values(
        _ first: String, _ second: String? = nil, cancellation: Cancellation? = nil
    ) throws -> Answered<[NamedValue]> {
        try one("values", first, second, cancellation) { _, output in
            try Outputs.values(labels, output).map { NamedValue(name: $0.name, value: activated($0.value)) }
        }
    }

    private func activated(_ number: Float) -> Float {
        signature.activation == "sigmoid" ? Float(Outputs.sigmoid(Double(number))) : number
    }

    /// Returns the entities of a text; what is longer than the file takes is cut off and has none.
    public func entities(_ text: String, cancellation: Cancellation? = nil) throws -> Answered<[Found]> {
        try one("token_logits", text, nil, cancellation) { row, output in
            if row.count == 0 { return [] }
            let width = output.count / row.count
            if width != labels.count { throw OutputError(description: "there are \(labels.count) labels for \(width) logits") }
            let logits = (0..<row.count).map { Array(output[$0 * width..<($0 + 1) * width]) }
            return Outputs.entities(text, labels: labels, from: row.from, to: row.to, logits: logits)
        }
    }

    /// Returns the best answer to a question over all windows of a passage; nil where the passage is empty, or where no answer
    /// is better than one by `noAnswerMargin`; see `Outputs.answer`.
    public func answer(
        _ question: String, _ passage: String, noAnswerMargin: Double? = nil, cancellation: Cancellation? = nil
    ) throws -> Answered<Found?> {
        try expect("spans")
        let encode = { try self.windows(question, passage, self.signature.maxLength, cancellation) }
        return try several(encode, cancellation) { rows, outputs in
            let windows = zip(rows, outputs).map { row, output in
                let places = row.texts.indices
                return AnsweredWindow(
                    from: places.map { row.texts[$0] == 1 ? row.from[$0] : -1 },
                    to: places.map { row.texts[$0] == 1 ? row.to[$0] : -1 },
                    starts: places.map { output[2 * $0] }, ends: places.map { output[2 * $0 + 1] })
            }
            return Outputs.answer(windows, noAnswerMargin: noAnswerMargin)
        }
    }

    /// Returns labels of one's own with their probabilities, the most probable first: one run for each label. See `ZeroShot`.
    ///
    /// - Throws: `WrongLabels` where the model is none of inference, or labels or template are none.
    public func zeroShot(
        _ text: String, _ labels: [String], template: String = ZeroShot.template, multiLabel: Bool = false,
        cancellation: Cancellation? = nil
    ) throws -> Answered<[Share]> {
        let asked = try ZeroShot(signature, labels, template: template, multiLabel: multiLabel)
        let encode = {
            try asked.hypotheses.map {
                try self.encoded(text, $0, prompt: "", maxLength: self.signature.maxLength, cancellation)
            }
        }
        return try several(encode, cancellation) { _, logits in asked.shares(logits) }
    }

    /// Runs the rows that the pipeline shipped with the file, and compares ids and outputs. Rows that are longer than the file
    /// takes are passed over.
    public func check(_ golden: Golden, cancellation: Cancellation = Cancellation()) throws -> GoldenVerdict {
        var outputs: [(wanted: [Float], found: [Float])] = []
        let results = try golden.rows.filter { $0.ids.count <= signature.maxLength }.map { row in
            try cancellation.check()
            let encoded = try encoded(row, golden, cancellation)
            let same = encoded?.ids == row.ids && encoded?.types == row.types
            guard same, let encoded else { return GoldenResult(row: row, sameIds: false, cosine: nil) }
            let output = try output(encoded)
            let comparable = output.count == row.output.count && output.allSatisfy(\.isFinite)
            if comparable { outputs.append((row.output, output)) }
            return GoldenResult(row: row, sameIds: true, cosine: comparable ? Self.cosine(row.output, output) : nil)
        }
        return Self.verdict(results, outputs, golden)
    }

    private func encoded(_ row: GoldenRow, _ golden: Golden, _ cancellation: Cancellation) throws -> Encoding? {
        guard let window = row.window else {
            return try encoded(row.first, row.second, prompt: row.prompt ?? "", maxLength: golden.maxLength, cancellation)
        }
        let all = try windows(row.first, row.second ?? "", golden.maxLength, cancellation)
        return all.indices.contains(window) ? all[window] : nil
    }

    private static func verdict(
        _ results: [GoldenResult], _ outputs: [(wanted: [Float], found: [Float])], _ golden: Golden
    ) -> GoldenVerdict {
        var failures: [String] = []
        if let other = results.first(where: { !$0.sameIds }) { failures.append("other ids for \"\(other.row.first.prefix(30))\"") }
        let worst = results.min { ($0.cosine ?? -.infinity) < ($1.cosine ?? -.infinity) }
        let sqnr = outputs.count == results.count ? sqnrDb(outputs) : nil
        if worst == nil { failures.append("there is no row that the file takes") }
        let least = golden.minCosine ?? -.infinity
        if let worst, worst.sameIds, !(worst.cosine.map { $0 >= least } ?? false) {
            let found = worst.cosine.map { "\($0)" } ?? "none"
            let asked = golden.minCosine.map { "\($0)" } ?? "-Infinity"
            failures.append("worst cosine \(found), \(asked) is asked for, \"\(worst.row.first.prefix(30))\"")
        }
        if let least = golden.minSqnrDb, let sqnr, sqnr < least { failures.append("SQNR \(sqnr) dB, \(least) is asked for") }
        return GoldenVerdict(rows: results, worstCosine: worst?.cosine, sqnrDb: sqnr, failures: failures)
    }

    /// Returns the output of a row as the golden rows have it: outputs side by side, token after token, padding left out.
    public func output(_ row: Encoding) throws -> [Float] {
        try Rows.output(signature, try runner.run(try model.pad(row)), row.count)
    }

    /// Returns how many tokens a text has with its prompt, special ones included, however many the file takes.
    ///
    /// - Parameters:
    ///   - first: the text; the question, where there is a passage.
    ///   - second: the second text.
    ///   - prompt: as of `embedding`.
    ///   - cancellation: gives up a long text word by word.
    public func tokens(
        _ first: String, _ second: String? = nil, prompt: String? = nil, cancellation: Cancellation? = nil
    ) throws -> Int {
        try tokenizer.encode(try signature.promptText(prompt) + first, second, cancellation: cancellation).count
    }

    /// Returns the row of a text behind a prompt, as sentence-transformers makes it: both are tokenised as one text.
    private func encoded(
        _ first: String, _ second: String?, prompt: String?, maxLength: Int, _ cancellation: Cancellation?
    ) throws -> Encoding {
        let before = try signature.promptText(prompt)
        let row = try tokenizer.encode(before + first, second, maxLength: maxLength, cancellation: cancellation)
        if signature.includePrompt || before.isEmpty { return row }
        let alone = try tokenizer.encode(before, maxLength: maxLength)
        // The special token at its end stands behind the text in the whole row.
        return row.unpooling(alone.texts.last == -1 ? alone.count - 1 : alone.count)
    }

    private func windows(
        _ question: String, _ passage: String, _ maxLength: Int, _ cancellation: Cancellation?
    ) throws -> [Encoding] {
        try tokenizer.windows(
            question, passage, maxLength: maxLength, stride: maxLength / Self.overlap, cancellation: cancellation)
    }

    private func one<Value: Sendable>(
        _ kind: String, _ first: String, _ second: String?, _ cancellation: Cancellation?, prompt: String? = nil,
        _ read: (Encoding, [Float]) throws -> Value
    ) throws -> Answered<Value> {
        try expect(kind)
        let began = Ticks.nanoseconds()
        let row = try encoded(first, second, prompt: prompt, maxLength: signature.maxLength, cancellation)
        let padded = try model.pad(row)
        let tokenized = Ticks.nanoseconds()
        try cancellation?.check()
        try runner.prepare(padded)
        let prepared = Ticks.nanoseconds()
        let outputs = try runner.run(padded)
        let ended = Ticks.nanoseconds()
        let value = try read(row, try Rows.output(signature, outputs, row.count))
        return Answered(
            value: value, tokens: row.count, length: padded.length, tokenizeMs: Ticks.milliseconds(began, tokenized),
            inferenceMs: Ticks.milliseconds(prepared, ended))
    }

    /// Runs several rows one after the other, and measures them as one.
    private func several<Value: Sendable>(
        _ encode: () throws -> [Encoding], _ cancellation: Cancellation?, _ read: ([Encoding], [[Float]]) throws -> Value
    ) throws -> Answered<Value> {
        let began = Ticks.nanoseconds()
        let rows = try encode()
        let padded = try rows.map(model.pad)
        let tokenized = Ticks.nanoseconds()
        for row in padded { try runner.prepare(row) }
        let prepared = Ticks.nanoseconds()
        let outputs = try zip(rows, padded).map { row, inputs in
            try cancellation?.check()
            return try Rows.output(signature, try runner.run(inputs), row.count)
        }
        let ended = Ticks.nanoseconds()
        return Answered(
            value: try read(rows, outputs), tokens: rows.map(\.count).max() ?? 0, length: padded.map(\.length).max() ?? 0,
            tokenizeMs: Ticks.milliseconds(began, tokenized), inferenceMs: Ticks.milliseconds(prepared, ended))
    }

    private func expect(_ kind: String) throws {
        if signature.outputKind != kind {
            throw OutputError(description: "\(model.entry.folder) gives \(signature.outputKind), not \(kind)")
        }
    }

    private static func cosine(_ one: [Float], _ other: [Float]) -> Double? {
        var product = 0.0
        var oneSquares = 0.0
        var otherSquares = 0.0
        for (one, other) in zip(one, other) {
            product += Double(one) * Double(other)
            oneSquares += Double(one) * Double(one)
            otherSquares += Double(other) * Double(other)
        }
        let norms = oneSquares.squareRoot() * otherSquares.squareRoot()
        // Not finite where a reference's number is too large for 32 bits.
        return norms > 0 && norms.isFinite ? product / norms : nil
    }

    private static func sqnrDb(_ outputs: [(wanted: [Float], found: [Float])]) -> Double {
        var noise = 0.0
        var signal = 0.0
        for (wanted, found) in outputs {
            for (wanted, found) in zip(wanted, found) {
                let off = Double(wanted) - Double(found)
                noise += off * off
                signal += Double(wanted) * Double(wanted)
            }
        }
        return noise == 0 ? .infinity : 10 * log10(signal / noise)
    }
}

/// The outputs of a row.
enum Rows {
    private static let perToken: Set<String> = ["token_logits", "spans"]

    /// Puts a runner's outputs side by side, without padding.
    ///
    /// - Throws: `RunnerFailed` where an output is absent, or has another size than the row's.
    static func output(_ signature: Signature, _ outputs: [String: [Float]], _ tokens: Int) throws -> [Float] {
        let names = Signature.outputNames[signature.outputKind] ?? []
        let arrays = try names.map { name in
            guard let array = outputs[name] else {
                throw RunnerFailed("the runtime gave no \(name); it gave \(outputs.keys.sorted().listed)")
            }
            return array
        }
        if !perToken.contains(signature.outputKind) {
            let wanted = lastSize(signature, names[0])
            if arrays[0].count != wanted {
                throw RunnerFailed("the runtime gave \(arrays[0].count) numbers, and the file says \(wanted.map(String.init) ?? "null")")
            }
            return arrays[0]
        }
        // Numbers of each token in an output: labels, or one.
        let widths = names.map { signature.outputKind == "spans" ? 1 : lastSize(signature, $0) ?? 0 }
        for (array, width) in zip(arrays, widths) where width < 1 || array.count < tokens * width || array.count % width != 0 {
            throw RunnerFailed("the runtime gave \(array.count) numbers for \(tokens) tokens with \(width) each")
        }
        var joined: [Float] = []
        joined.reserveCapacity(tokens * widths.reduce(0, +))
        for token in 0..<tokens {
            for (array, width) in zip(arrays, widths) { joined += array[token * width..<(token + 1) * width] }
        }
        return joined
    }

    private static func lastSize(_ signature: Signature, _ name: String) -> Int? {
        signature.functions.first?.outputs.first { $0.name == name }?.shape.last ?? nil
    }
}
