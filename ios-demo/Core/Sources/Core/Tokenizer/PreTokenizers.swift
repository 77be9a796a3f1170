/// A step that cuts a normalised text into words.
typealias PreTokenizer = @Sendable (AlignedText) -> [AlignedText]

/// The `pre_tokenizer` of `tokenizer.json`.
enum PreTokenizers {
    /// Reads one step, or several. Throws `UnsupportedTokenizer` for a kind that is not known here.
    static func read(_ step: Json) throws -> PreTokenizer {
        let kind = try step.text("type")
        switch kind {
        case "Sequence":
            let steps = try step.objects("pretokenizers").map(read)
            return { text in steps.reduce([text]) { words, one in words.flatMap(one) } }
        case "BertPreTokenizer":
            let spaces = atEach("space", .removed)
            let signs = atEach("bert_punctuation", .isolated)
            return { text in spaces(text).flatMap(signs) }
        case "WhitespaceSplit": return atEach("space", .removed)
        case "Whitespace": return split(try Pattern(#"\w+|[^\w\s]+"#), .removed, invert: true)
        case "Punctuation": return atEach("bert_punctuation", try Behaviour.read(try step.textOrNil("behavior") ?? "Isolated"))
        case "Digits":
            let digits = try Pattern(try step.flag("individual_digits") ? #"\p{N}"# : #"\p{N}+"#)
            return split(digits, .isolated, invert: false)
        case "Split":
            return split(try step.pattern(), try Behaviour.read(try step.text("behavior")), invert: try step.flag("invert"))
        case "Metaspace": return try metaspace(step)
        case "ByteLevel": return try byteLevel(prefix: try step.flag("add_prefix_space", true), regex: try step.flag("use_regex", true))
        default: throw UnsupportedTokenizer("tokenizer.json has the pre_tokenizer \(kind), which is not supported")
        }
    }

    private enum Behaviour: String, CaseIterable {
        case removed = "Removed"
        case isolated = "Isolated"
        case mergedWithPrevious = "MergedWithPrevious"
        case mergedWithNext = "MergedWithNext"
        case contiguous = "Contiguous"

        static func read(_ name: String) throws -> Behaviour {
            guard let found = Behaviour(rawValue: name) else {
                throw UnsupportedTokenizer("tokenizer.json splits with the behavior \(name), which is not supported")
            }
            return found
        }
    }

    private static func atEach(_ set: String, _ behaviour: Behaviour) -> PreTokenizer {
        let members = CharacterTables.set(set)
        return { text in
            var cuts = Cuts(text, behaviour)
            for at in 0..<text.count where members.contains(text.codes[at]) { cuts.match(at, at + 1) }
            return cuts.words()
        }
    }

    private static func split(_ pattern: Pattern, _ behaviour: Behaviour, invert: Bool) -> PreTokenizer {
        { text in
            var cuts = Cuts(text, behaviour, invert: invert)
            pattern.each(text.codes) { cuts.match($0, $1) }
            return cuts.words()
        }
    }

    /// Collects matches and what lies between them, and puts them together as the behaviour says.
    private struct Cuts {
        private let text: AlignedText
        private let behaviour: Behaviour
        private let invert: Bool
        private var ends: [(end: Int, match: Bool)] = []

        init(_ text: AlignedText, _ behaviour: Behaviour, invert: Bool = false) {
            self.text = text
            self.behaviour = behaviour
            self.invert = invert
        }

        mutating func match(_ first: Int, _ end: Int) {
            add(first, invert)
            add(end, !invert)
        }

        private mutating func add(_ end: Int, _ match: Bool) {
            if end > ends.last?.end ?? 0 { ends.append((end, match)) }
        }

        mutating func words() -> [AlignedText] {
            add(text.count, invert)
            var words: [AlignedText] = []
            var first = 0
            for (at, cut) in ends.enumerated() {
                if at + 1 < ends.count, joins(cut.match, ends[at + 1].match) { continue }
                if behaviour != .removed || !cut.match { words.append(text.slice(first, cut.end)) }
                first = cut.end
            }
            return words
        }

        private func joins(_ match: Bool, _ following: Bool) -> Bool {
            switch behaviour {
            case .removed, .isolated: false
            case .mergedWithPrevious: !match && following
            case .mergedWithNext: match && !following
            case .contiguous: match == following
            }
        }
    }

    private static func metaspace(_ step: Json) throws -> PreTokenizer {
        let replacement = try step.text("replacement")
        guard let mark = replacement.codes.first else { throw UnsupportedTokenizer("tokenizer.json: replacement is empty") }
        let scheme = try step.textOrNil("prepend_scheme") ?? (try step.flag("add_prefix_space", true) ? "always" : "never")
        let cut = try step.flag("split", true) ? split(Pattern(literal: replacement), .mergedWithNext, invert: false) : nil
        return { text in
            var marked = text
            marked.codes = text.codes.map { $0 == 0x20 ? mark : $0 }
            let wanted = scheme == "always" || (scheme == "first" && text.from.first == 0)
            if wanted, marked.codes.first != mark { marked = prefixed(marked, mark) }
            return cut?(marked) ?? [marked]
        }
    }

    private static func prefixed(_ text: AlignedText, _ code: Code) -> AlignedText {
        var built = AlignedText(capacity: text.count + 1)
        let at = text.from.first ?? 0
        built.add(code, at, at)
        for index in 0..<text.count { built.add(text, index) }
        return built
    }

    private static let gpt2 = #"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"#

    private static func byteLevel(prefix: Bool, regex: Bool) throws -> PreTokenizer {
        let words = regex ? split(try Pattern(gpt2), .isolated, invert: false) : nil
        return { text in
            let spaced = prefix && text.codes.first != 0x20 ? prefixed(text, 0x20) : text
            return (words?(spaced) ?? [spaced]).map(asBytes)
        }
    }

    private static func asBytes(_ text: AlignedText) -> AlignedText {
        var built = AlignedText(capacity: text.count + text.count / 2)
        for at in 0..<text.count {
            for byte in UTF8.encode(Unicode.Scalar(text.codes[at])!)! {
                built.add(ByteCharacters.all[Int(byte)], text.from[at], text.to[at])
            }
        }
        return built
    }
}

/// GPT-2's characters for bytes: those that can be seen stand for themselves, the others for U+0100 and on.
enum ByteCharacters {
    static let all: [Code] = {
        var next: Code = 256
        return (Code(0)...255).map { byte in
            if (0x21...0x7E).contains(byte) || (0xA1...0xAC).contains(byte) || byte >= 0xAE { return byte }
            next += 1
            return next - 1
        }
    }()
}
