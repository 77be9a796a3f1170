/// Labels or a template that a model cannot be asked with.
public struct WrongLabels: Error, CustomStringConvertible, Sendable {
    /// Why, in one sentence.
    public let description: String
}

/// Labels that a model never saw, each a hypothesis about a text; the same rules as `pipeline/convert/zero_shot.py`.
///
/// Source: Yin et al. 2019 (Benchmarking zero-shot text classification); transformers' pipeline `zero-shot-classification`.
public struct ZeroShot: Sendable {
    public static let template = "This example is {}."
    private static let half = 0.5

    /// The labels as they are put into the template.
    public let labels: [String]
    /// What is run behind the text, one after the other.
    public let hypotheses: [String]
    private let entailment: Int
    /// Nil where the labels share one decision.
    private let contradiction: Int?

    /// Reads what a person asks.
    ///
    /// - Parameters:
    ///   - signature: of a classifier of natural language inference.
    ///   - written: labels, two or more that differ; one is enough where each is decided by itself. White space around them is
    ///     left out, and so is one that was there before.
    ///   - template: a sentence with one pair of braces, into which each label is put.
    ///   - multiLabel: decide each label by itself: its probability is that of entailment beside contradiction alone.
    /// - Throws: `WrongLabels` where the model has no label of entailment, or labels or template are none.
    public init(
        _ signature: Signature, _ written: [String], template: String = ZeroShot.template, multiLabel: Bool = false
    ) throws {
        guard let entailment = Self.entailment(signature) else {
            throw Self.wrong(
                "\(Self.said(signature)); labels of one's own need a model of natural language inference, which has a label entailment")
        }
        self.entailment = entailment
        contradiction = multiLabel ? Self.contradiction(signature) : nil
        if multiLabel, contradiction == nil {
            throw Self.wrong("\(Self.said(signature)); to decide each label by itself needs a label contradiction")
        }
        guard let (before, behind) = Self.halves(template) else {
            throw Self.wrong("the template is \(template); it has to have {} once, where a label is put")
        }
        labels = Self.distinct(written.map { Self.stripped($0.unicodeScalars) })
        if labels.count < Self.least(multiLabel: multiLabel) || labels.contains(where: \.isEmpty) {
            let least = multiLabel ? "one or more" : "two or more"
            throw Self.wrong("the labels are \(written); give \(least) that differ, none of them empty")
        }
        hypotheses = labels.map { before + $0 + behind }
    }

    /// Returns each label with its probability, the most probable first; where each is decided by itself, also whether
    /// entailment is more probable than contradiction.
    ///
    /// - Parameter logits: of the text with each hypothesis.
    public func shares(_ logits: [[Float]]) -> [Share] {
        let shares: [Share]
        if let contradiction {
            shares = zip(labels, logits).map { label, row in
                let share = Outputs.softmax([row[contradiction], row[entailment]])[1]
                return Share(label: label, share: share, isGiven: share >= Self.half)
            }
        } else {
            shares = zip(labels, Outputs.softmax(logits.map { $0[entailment] })).map { Share(label: $0, share: $1) }
        }
        return Outputs.stable(shares) { $0.share > $1.share }
    }

    // MARK: - What can be asked

    /// Returns whether a model takes labels of a person's own.
    public static func isPossible(_ signature: Signature) -> Bool { entailment(signature) != nil }

    /// Returns whether it can also decide each of them by itself.
    public static func decidesEach(_ signature: Signature) -> Bool { contradiction(signature) != nil }

    /// Returns whether a label can be put into a template.
    public static func isTemplate(_ template: String) -> Bool { halves(template) != nil }

    /// Returns how many labels have to be there.
    public static func least(multiLabel: Bool) -> Int { multiLabel ? 1 : 2 }

    /// Returns the labels of a field, where commas or ends of lines stand between them.
    public static func split(_ field: String) -> [String] {
        let between: Set<Unicode.Scalar> = [",", "\n", "\r"]
        return distinct(field.unicodeScalars.split { between.contains($0) }.map { stripped($0) }.filter { !$0.isEmpty })
    }

    private static func wrong(_ why: String) -> WrongLabels { WrongLabels(description: why) }

    private static func said(_ signature: Signature) -> String {
        let labels = (signature.labels ?? []).joined(separator: ", ")
        return "\(signature.file) gives \(labels.isEmpty ? signature.outputKind : labels)"
    }

    /// Returns the place of the logit of entailment, or nil where the model is none of inference.
    private static func entailment(_ signature: Signature) -> Int? {
        signature.outputKind == "logits" ? place(signature, "entail") : nil
    }

    /// Returns the place of the logit of contradiction; of two labels it is the other one, whatever its name.
    private static func contradiction(_ signature: Signature) -> Int? {
        guard let entailment = entailment(signature) else { return nil }
        return signature.labels?.count == 2 ? 1 - entailment : place(signature, "contradict")
    }

    // Below, code points are compared as in Python: to Swift's strings an accent belongs to the letter before it.

    private static func place(_ signature: Signature, _ beginning: String) -> Int? {
        signature.labels?.firstIndex { $0.lowercased().unicodeScalars.starts(with: beginning.unicodeScalars) }
    }

    /// Returns what stands before and behind the braces of a template, or nil where there is not one pair.
    private static func halves(_ template: String) -> (before: String, behind: String)? {
        let all = Array(template.unicodeScalars)
        let places = all.indices.dropLast().filter { all[$0] == "{" && all[$0 + 1] == "}" }
        guard places.count == 1, let place = places.first else { return nil }
        return (text(all[..<place]), text(all[(place + 2)...]))
    }

    private static func stripped(_ label: some BidirectionalCollection<Unicode.Scalar>) -> String {
        let spaces = CharacterTables.set("text_space")
        let isSpace = { (scalar: Unicode.Scalar) in spaces.contains(Code(scalar.value)) }
        guard let first = label.firstIndex(where: { !isSpace($0) }), let last = label.lastIndex(where: { !isSpace($0) }) else {
            return ""
        }
        return text(label[first...last])
    }

    private static func distinct(_ labels: [String]) -> [String] {
        var seen: Set<[Unicode.Scalar]> = []
        return labels.filter { seen.insert(Array($0.unicodeScalars)).inserted }
    }

    private static func text(_ scalars: some Collection<Unicode.Scalar>) -> String {
        var text = String.UnicodeScalarView()
        for scalar in scalars { text.append(scalar) }
        return String(text)
    }
}
