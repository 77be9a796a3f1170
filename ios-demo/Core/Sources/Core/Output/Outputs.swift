import Foundation

/// A label with its probability.
public struct Share: Sendable, Equatable {
    public let label: String
    public let share: Double
    /// Whether the text has it, where each label is decided by itself; nil where they share one decision.
    public let isGiven: Bool?

    init(label: String, share: Double, isGiven: Bool? = nil) {
        self.label = label
        self.share = share
        self.isGiven = isGiven
    }
}

/// One number of a regression that gives several.
public struct NamedValue: Sendable, Equatable {
    public let name: String
    public let value: Float
}

/// A part of a text.
public struct Found: Sendable, Equatable {
    /// Its first character, in UTF-16 code units.
    public let from: Int
    /// One past its last character.
    public let to: Int
    /// The sum of two logits for an answer; the mean probability of its tag for an entity.
    public let score: Double
    /// What an entity is; nil for an answer.
    public let kind: String?

    init(_ from: Int, _ to: Int, _ score: Double, _ kind: String? = nil) {
        self.from = from
        self.to = to
        self.score = score
        self.kind = kind
    }
}

/// A window over a passage: where its tokens are (-1 for those that are not of the passage), and their logits.
public struct AnsweredWindow: Sendable {
    let from: [Int]
    let to: [Int]
    let starts: [Float]
    let ends: [Float]

    public init(from: [Int], to: [Int], starts: [Float], ends: [Float]) {
        self.from = from
        self.to = to
        self.starts = starts
        self.ends = ends
    }
}

/// A model's outputs do not fit what is said of them.
public struct OutputError: Error, CustomStringConvertible, Sendable {
    /// What is wrong, in one sentence.
    public let description: String
}

/// What people read out of a model's outputs; the same arithmetic as `pipeline/metrics/outputs.py`.
public enum Outputs {
    /// The longest answer in tokens. Source: `max_answer_length` of google-research/bert, run_squad.py.
    public static let longestAnswer = 30
    private static let half = 0.5

    /// Returns probabilities.
    public static func softmax(_ logits: [Float]) -> [Double] {
        let largest = Double(logits.max() ?? 0)
        let sum = log(logits.reduce(0) { $0 + exp(Double($1) - largest) })
        return logits.map { exp(Double($0) - largest - sum) }
    }

    /// Returns each label with its probability, the most probable first.
    ///
    /// - Throws: `OutputError` where there are not as many labels as logits.
    public static func labels(_ labels: [String], _ logits: [Float]) throws -> [Share] {
        if labels.count != logits.count {
            throw OutputError(description: "there are \(labels.count) labels for \(logits.count) logits")
        }
        let shares = zip(labels, softmax(logits)).map { Share(label: $0, share: $1) }
        return stable(shares) { $0.share > $1.share }
    }

    /// Returns each label with a probability of its own, the most probable first, and whether the text has it.
    ///
    /// - Parameters:
    ///   - labels: in the order of the logits.
    ///   - logits: of one text.
    ///   - thresholds: from which probability on a label is given; nil for one half.
    /// - Throws: `OutputError` where there are not as many labels as logits.
    public static func eachLabel(_ labels: [String], _ logits: [Float], thresholds: [Double]? = nil) throws -> [Share] {
        if labels.count != logits.count {
            throw OutputError(description: "there are \(labels.count) labels for \(logits.count) logits")
        }
        let shares = labels.indices.map { number in
            let share = sigmoid(Double(logits[number]))
            return Share(label: labels[number], share: share, isGiven: share >= thresholds?[number] ?? half)
        }
        return stable(shares) { $0.share > $1.share }
    }

    /// Returns the numbers of a regression by their names, in the file's order.
    ///
    /// - Throws: `OutputError` where there are not as many names as numbers.
    public static func values(_ names: [String], _ numbers: [Float]) throws -> [NamedValue] {
        if names.count != numbers.count {
            throw OutputError(description: "there are \(names.count) labels for \(numbers.count) numbers")
        }
        return zip(names, numbers).map { NamedValue(name: $0, value: $1) }
    }

    /// Returns the logistic function of a number, between 0 and 1.
    public static func sigmoid(_ number: Double) -> Double { 1 / (1 + exp(-number)) }

    /// Returns the cosine of two embeddings of unit length, which is what the files give.
    public static func cosine(_ one: [Float], _ other: [Float]) -> Float {
        precondition(one.count == other.count, "the embeddings have \(one.count) and \(other.count) numbers")
        return Float(zip(one, other).reduce(0.0) { $0 + Double($1.0) * Double($1.1) })
    }

    /// Returns the length of an embedding: 1, or 0 for a row of padding.
    public static func length(_ embedding: [Float]) -> Float { embedding.reduce(0) { $0 + $1 * $1 }.squareRoot() }

    /// Returns the places of the nearest embeddings with their cosines, the nearest first.
    public static func nearest(_ one: [Float], among: [[Float]], top: Int) -> [(place: Int, cosine: Float)] {
        let all = among.enumerated().map { (place: $0.offset, cosine: cosine(one, $0.element)) }
        return Array(stable(all) { $0.cosine > $1.cosine }.prefix(top))
    }

    /// Sorts; what is equal stays in its order, which `sorted` does not promise.
    static func stable<Element>(_ all: [Element], _ before: (Element, Element) -> Bool) -> [Element] {
        all.enumerated().sorted { one, other in
            before(one.element, other.element) || (!before(other.element, one.element) && one.offset < other.offset)
        }.map(\.element)
    }

    /// Returns the best answer over the windows of a passage, or nil where no window has a token of it.
    ///
    /// - Parameters:
    ///   - windows: over the passage.
    ///   - noAnswerMargin: for models that were trained to say that there is no answer: nil is returned where the score of the
    ///     first token (`[CLS]`) as start and end, in the window where it is lowest, is higher than the answer's by more than
    ///     this. Nil takes the best answer, however poor.
    ///
    /// Source: Devlin et al. 2019, section 4.2: the pair of a start and a later end with the largest sum of logits; section
    /// 4.3 and `null_score_diff_threshold` of run_squad.py for no answer.
    public static func answer(_ windows: [AnsweredWindow], noAnswerMargin: Double? = nil) -> Found? {
        var best: Found?
        for found in windows.compactMap(answer) where best.map({ found.score > $0.score }) ?? true { best = found }
        guard let best, let noAnswerMargin else { return best }
        let scores = windows.compactMap { window in
            window.starts.first.flatMap { start in window.ends.first.map { Double(start) + Double($0) } }
        }
        guard let none = scores.min() else { return best }
        return none - best.score > noAnswerMargin ? nil : best
    }

    private static func answer(_ window: AnsweredWindow) -> Found? {
        let inside = window.from.indices.filter { window.from[$0] >= 0 }
        var best: Found?
        for (number, first) in inside.enumerated() {
            for last in inside[number..<min(number + longestAnswer, inside.count)] {
                let score = Double(window.starts[first]) + Double(window.ends[last])
                if best.map({ score > $0.score }) ?? true { best = Found(window.from[first], window.to[last], score) }
            }
        }
        return best
    }

    /// Returns where each word of a text is, in UTF-16 code units; white space separates words.
    public static func words(_ text: String) -> [Range<Int>] {
        let spaces = CharacterTables.set("text_space")
        var words: [Range<Int>] = []
        var first: Int?
        let units = Array(text.utf16)
        for at in 0...units.count {
            let outside = at == units.count || spaces.contains(Code(units[at]))
            if !outside, first == nil { first = at }
            if outside, let begin = first {
                words.append(begin..<at)
                first = nil
            }
        }
        return words
    }

    /// Tags each word of a text by its first token, and joins the tags into entities. Words are what white space separates, so
    /// an entity loses the punctuation at its ends.
    ///
    /// - Parameters:
    ///   - text: the text.
    ///   - labels: `B-person`, `I-person`, `O` …, in the order of the logits.
    ///   - from: where each token of the row begins in the text; the same as `to` for special tokens.
    ///   - to: where it ends.
    ///   - logits: one array for each token of the row.
    ///
    /// Source: Ramshaw and Marcus 1995, as conlleval reads it: an `I-` after another kind begins an entity.
    public static func entities(_ text: String, labels: [String], from: [Int], to: [Int], logits: [[Float]]) -> [Found] {
        var found: [Found] = []
        var scores: [Double] = []
        // Not an empty text, which a label may be as well.
        var open: String?
        for word in words(text) {
            guard let token = from.indices.first(where: { from[$0] < word.upperBound && to[$0] > word.lowerBound }) else { continue }
            let shares = softmax(logits[token])
            // The first of the largest.
            let best = shares.indices.reduce(0) { shares[$1] > shares[$0] ? $1 : $0 }
            let tag = labels[best]
            let begins = tag.hasPrefix("B-")
            let kind = begins || tag.hasPrefix("I-") ? String(tag.dropFirst(2)) : tag
            if tag == "O" {
                open = nil
            } else if kind == open, !begins {
                scores.append(shares[best])
                let mean = scores.reduce(0, +) / Double(scores.count)
                found[found.count - 1] = Found(found[found.count - 1].from, word.upperBound, mean, kind)
            } else {
                open = kind
                scores = [shares[best]]
                found.append(Found(word.lowerBound, word.upperBound, shares[best], kind))
            }
        }
        let units = Array(text.utf16)
        return found.map { withoutPunctuation($0, units) }
    }

    /// Returns an entity less the punctuation at its ends; one that is all punctuation stays as it is.
    private static func withoutPunctuation(_ found: Found, _ units: [UInt16]) -> Found {
        guard let punctuation = CharacterTables.category("P") else { return found }
        let spaces = CharacterTables.set("text_space")
        var inside: Range<Int>?
        var at = found.from
        while at < found.to {
            let code = AlignedText.code(units, at)
            let next = at + (code > 0xFFFF ? 2 : 1)
            // Spaces too: `Anna —` may be two words of one entity.
            if !punctuation.contains(code), !spaces.contains(code) { inside = (inside?.lowerBound ?? at)..<next }
            at = next
        }
        return inside.map { Found($0.lowerBound, $0.upperBound, found.score, found.kind) } ?? found
    }
}
