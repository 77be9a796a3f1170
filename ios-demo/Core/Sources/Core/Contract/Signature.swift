/// One input or output of a file; a nil in the shape is the length, free between the function's bounds.
public struct Tensor: Sendable {
    public let name: String
    public let type: String
    public let shape: [Int?]
}

/// One entry point: a LiteRT signature, a `.pte` method, a Core ML function.
public struct Function: Sendable {
    public let name: String
    /// The shortest row that it takes, in tokens; equal to `maxLength` where the length is fixed.
    public let minLength: Int
    public let maxLength: Int
    public let inputs: [Tensor]
    public let outputs: [Tensor]

    /// Whether it runs at one length only.
    public var fixed: Bool { minLength == maxLength }
}

/// A row at the length at which it runs: each input by its name, padded.
public struct PaddedRow: Sendable {
    public let function: Function
    public let length: Int
    public let inputs: [String: [Int32]]
}

/// A row is longer than a file takes.
public struct RowTooLong: Error, CustomStringConvertible, Sendable {
    /// What is wrong, in one sentence.
    public let description: String
}

/// A model has no prompt of that name.
public struct NoSuchPrompt: Error, CustomStringConvertible, Sendable {
    /// Which it has, in one sentence.
    public let description: String
}

/// What `signature.json` says: what an app needs to know to call a converted file.
public struct Signature: Sendable {
    public let backend: String
    public let scheme: String
    public let task: String
    public let outputKind: String
    public let file: String
    public let minimumRuntime: String
    public let padTokenId: Int
    /// Names of the logits in order; nil where the outputs have none.
    public let labels: [String]?
    /// From the shortest to the longest.
    public let functions: [Function]
    public let parameters: Int
    /// Texts that an embedding model wants before a text, by name.
    public let prompts: [String: String]
    /// The prompt of a text that is embedded without naming one; nil for no prompt.
    public let defaultPrompt: String?
    /// Whether the prompt's tokens are pooled.
    public let includePrompt: Bool
    /// What a regression's number goes through before a person reads it: `identity` or `sigmoid`.
    public let activation: String
    /// For several labels at once: the probability of each from which on it is given; nil for one half.
    public let thresholds: [Double]?
    /// The space of an embedding model's vectors; nil for other models, and for files that older versions made.
    public let vectors: VectorSpace?

    /// The longest row that the file takes, special tokens included.
    public var maxLength: Int { functions.map(\.maxLength).max() ?? 0 }

    /// Returns the text that is put before a text.
    ///
    /// - Parameter prompt: its name; nil for the default prompt, which may be none, and an empty one for no prompt.
    /// - Throws: `NoSuchPrompt` where the model has none of that name.
    public func promptText(_ prompt: String?) throws -> String {
        let name = prompt ?? defaultPrompt ?? ""
        if name.isEmpty { return "" }
        guard let text = prompts[name] else {
            let there = prompts.isEmpty ? "it has none" : "it has \(prompts.keys.sorted().joined(separator: ", "))"
            throw NoSuchPrompt(description: "there is no prompt \(name) for \(file); \(there)")
        }
        return text
    }

    /// Returns the function and the length at which a row of so many tokens runs: the smallest that fits.
    public func choose(_ tokens: Int) throws -> (Function, Int) {
        guard let function = functions.first(where: { tokens <= $0.maxLength }) else {
            throw RowTooLong(description: "a row of \(tokens) tokens does not fit; \(file) takes at most \(maxLength)")
        }
        return (function, max(tokens, function.minLength))
    }

    /// Pads a row to the length at which it runs; padding has mask 0 and type 0, and what is not pooled has mask 2.
    public func pad(_ row: Encoding) throws -> PaddedRow {
        let (function, length) = try choose(row.count)
        var inputs: [String: [Int32]] = [:]
        for input in function.inputs {
            let (values, padding): ([Int], Int) =
                switch input.name {
                case "input_ids": (row.ids, padTokenId)
                case "attention_mask": (row.ids.indices.map { $0 < row.unpooled ? Self.unpooled : 1 }, 0)
                default: (row.types, 0)
                }
            inputs[input.name] = values.map { Int32($0) } + [Int32](repeating: Int32(padding), count: length - row.count)
        }
        return PaddedRow(function: function, length: length, inputs: inputs)
    }

    /// The mask of a token that is attended to and not pooled.
    private static let unpooled = 2
    private static let identity = "identity"
    private static let named: Set<String> = ["multi_label", "values"]
    private static let inputNames: Set<String> = ["input_ids", "attention_mask", "token_type_ids"]

    /// Names of the outputs by their kind, in the order in which they stand side by side.
    static let outputNames: [String: [String]] = [
        "embedding": ["sentence_embedding"],
        "logits": ["logits"],
        "multi_label": ["logits"],
        "value": ["logits"],
        "values": ["logits"],
        "token_logits": ["logits"],
        "spans": ["start_logits", "end_logits"],
    ]

    /// Reads the fields, and refuses what no converted file can be; the same checks as the pipeline's.
    init(_ json: Json) throws {
        backend = try json.text("backend")
        scheme = try json.text("scheme")
        task = try json.text("task")
        outputKind = try json.text("output_kind")
        file = try json.text("file")
        minimumRuntime = try json.text("minimum_runtime")
        padTokenId = try json.number("pad_token_id")
        labels = json.present("labels") == nil ? nil : try json.texts("labels")
        functions = try json.objects("functions").map(Self.function)
        parameters = try json.number("parameters")
        prompts = try json.child("prompts") == nil ? [:] : json.textsByName("prompts")
        defaultPrompt = try json.textOrNil("default_prompt")
        includePrompt = try json.flag("include_prompt", true)
        activation = try json.textOrNil("activation") ?? Self.identity
        thresholds = try json.present("thresholds") == nil ? nil : json.doubles("thresholds")
        vectors = try json.child("vectors").map(VectorSpace.init)
        try check()
    }

    private func check() throws {
        if !file.isPlainName { throw WrongJson("file is \(file), which is no plain name of a file in this folder") }
        let lengths = functions.map(\.maxLength)
        if lengths.isEmpty || zip(lengths, lengths.dropFirst()).contains(where: { $0 >= $1 }) {
            throw WrongJson("functions have the lengths \(lengths.listed), which have to rise")
        }
        if padTokenId < 0 { throw WrongJson("pad_token_id is \(padTokenId)") }
        try checkPrompts()
        if thresholds != nil, outputKind != "multi_label" { throw WrongJson("thresholds: output_kind \(outputKind) has none") }
        if let thresholds, thresholds.count != labels?.count {
            throw WrongJson("thresholds: there are \(thresholds.count) for \(labels?.count ?? 0) labels")
        }
        if vectors != nil, outputKind != "embedding" { throw WrongJson("vectors: output_kind \(outputKind) has none") }
        for function in functions { try check(function) }
    }

    private func check(_ function: Function) throws {
        let name = function.name
        if function.minLength < 1 || function.minLength > function.maxLength {
            throw WrongJson("functions: \(name) takes \(function.minLength) to \(function.maxLength) tokens")
        }
        let names = function.inputs.map(\.name)
        let whole = Set(names).isSubset(of: Self.inputNames) && names.contains("input_ids") && names.contains("attention_mask")
        if !whole || Set(names).count < names.count { throw WrongJson("functions: \(name) has the inputs \(names.listed)") }
        let shape = [1, function.fixed ? function.maxLength : nil]
        if let odd = function.inputs.first(where: { $0.type != "int32" || $0.shape != shape }) {
            throw WrongJson("functions: \(name): \(odd.name) is \(odd.type) \(odd.shape.map(Self.shown).listed)")
        }
        let outputs = function.outputs.map(\.name)
        if outputs.sorted() != Self.outputNames[outputKind]?.sorted() {
            throw WrongJson("functions: \(name) has the outputs \(outputs.listed)")
        }
        let width = function.outputs.first?.shape.last ?? nil
        if let vectors, vectors.width != width {
            throw WrongJson("vectors: width is \(vectors.width), and \(name) gives \(Self.shown(width)) numbers")
        }
        // Without names, numbers side by side mean nothing to a person.
        if labels != nil || Self.named.contains(outputKind), labels?.count ?? 0 != width {
            throw WrongJson("labels: there are \(labels?.count ?? 0) for \(Self.shown(width)) outputs of \(name)")
        }
    }

    private func checkPrompts() throws {
        let names = prompts.keys.sorted()
        if !prompts.isEmpty, outputKind != "embedding" {
            throw WrongJson("prompts: output_kind \(outputKind) takes none, and there are \(names.listed)")
        }
        if let defaultPrompt, prompts[defaultPrompt] == nil {
            throw WrongJson("default_prompt is \(defaultPrompt), and prompts has \(names.listed)")
        }
    }

    private static func shown(_ size: Int?) -> String { size.map(String.init) ?? "null" }

    private static func function(_ json: Json) throws -> Function {
        Function(
            name: try json.text("name"), minLength: try json.number("min_length"), maxLength: try json.number("max_length"),
            inputs: try json.objects("inputs").map(tensor), outputs: try json.objects("outputs").map(tensor))
    }

    private static func tensor(_ json: Json) throws -> Tensor {
        let shape = try json.array("shape").map { size -> Int? in
            if case .null = size { return nil }
            guard let whole = size.whole else { throw WrongJson("shape holds \(size.shown)") }
            return whole
        }
        return Tensor(name: try json.text("name"), type: try json.text("dtype"), shape: shape)
    }
}

extension String {
    /// Whether it can only be the name of a file in the folder at hand: `[A-Za-z0-9][A-Za-z0-9._-]*`.
    var isPlainName: Bool {
        guard let first = utf8.first, first.isOfPlainName, ![UInt8(ascii: "."), UInt8(ascii: "-"), UInt8(ascii: "_")].contains(first)
        else { return false }
        return utf8.allSatisfy(\.isOfPlainName)
    }
}
