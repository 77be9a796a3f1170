/// A text, and where its words are in it.
struct Words {
    let text: AlignedText
    let ranges: [Range<Int>]

    /// Calls `found` with each word.
    func each(_ found: (Slice) throws -> Void) rethrows {
        for range in ranges { try found(Slice(text.codes, range.lowerBound, range.upperBound)) }
    }
}

/// A step that cuts the words of a normalised text into smaller ones; at first the whole text is one.
typealias PreTokenizer = @Sendable (Words) -> Words

/// The `pre_tokenizer` of `tokenizer.json`.
enum PreTokenizers {
    /// Reads one step, or several. Throws `UnsupportedTokenizer` for a kind that is not known here.
    static func read(_ step: Json) throws -> PreTokenizer {
        let kind = try step.text("type")
        switch kind {
        case "Sequence":
            let steps = try step.objects("pretokenizers").map(read)
            return { words in steps.reduce(words) { cut, one in one(cut) } }
        case "BertPreTokenizer":
            let spaces = atEach("space", .removed)
            let signs = atEach("bert_punctuation", .isolated)
            return { words in signs(spaces(words)) }
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
        return { words in
            var cuts = Cuts(behaviour)
            words.each { word in
                cuts.begin(word)
                for at in word.first..<word.end where members.contains(word.codes[at]) { cuts.match(at, at + 1) }
                cuts.end(word)
            }
            return Words(text: words.text, ranges: cuts.words)
        }
    }

    private static func split(_ pattern: Pattern, _ behaviour: Behaviour, invert: Bool) -> PreTokenizer {
        { words in
            var cuts = Cuts(behaviour, invert: invert)
            words.each { word in
                cuts.begin(word)
                pattern.each(word) { cuts.match($0, $1) }
                cuts.end(word)
            }
            return Words(text: words.text, ranges: cuts.words)
        }
    }

    /// Takes matches and what lies between them, and puts them together as the behaviour says.
    private struct Cuts {
        private let behaviour: Behaviour
        private let invert: Bool
        private(set) var words: [Range<Int>] = []
        // The piece that may still grow, and whether what it has last is a match.
        private var first = 0
        private var last = 0
        private var matched = false

        init(_ behaviour: Behaviour, invert: Bool = false) {
            self.behaviour = behaviour
            self.invert = invert
        }

        mutating func begin(_ word: Slice) {
            first = word.first
            last = first
        }

        mutating func match(_ first: Int, _ end: Int) {
            add(first, invert)
            add(end, !invert)
        }

        mutating func end(_ word: Slice) {
            add(word.end, invert)
            finish()
        }

        private mutating func add(_ end: Int, _ match: Bool) {
            if end <= last { return }
            let joins =
                switch behaviour {
                case .removed, .isolated: false
                case .mergedWithPrevious: !matched && match
                case .mergedWithNext: matched && !match
                case .contiguous: matched == match
                }
            if !joins { finish() }
            last = end
            matched = match
        }

        private mutating func finish() {
            if first < last, behaviour != .removed || !matched { words.append(first..<last) }
            first = last
        }
    }

    private static func metaspace(_ step: Json) throws -> PreTokenizer {
        let replacement = try step.text("replacement")
        guard let mark = replacement.codes.first else { throw UnsupportedTokenizer("tokenizer.json: replacement is empty") }
        let scheme = try step.textOrNil("prepend_scheme") ?? (try step.flag("add_prefix_space", true) ? "always" : "never")
        let cut = try step.flag("split", true) ? split(Pattern(literal: replacement), .mergedWithNext, invert: false) : nil
        return { words in
            var marked = words.text
            for at in 0..<marked.count where marked.codes[at] == 0x20 { marked.codes[at] = mark }
            let whole = prefixed(Words(text: marked, ranges: words.ranges), mark) { at in
                scheme == "always" || (scheme == "first" && words.text.from[at] == 0)
            }
            return cut?(whole) ?? whole
        }
    }

    /// Puts a character before each word that does not begin with it, where `wanted` says so of the word's first place.
    private static func prefixed(_ words: Words, _ code: Code, _ wanted: (Int) -> Bool) -> Words {
        let text = words.text
        return rebuilt(words, text.count + words.ranges.count) { built, word in
            if text.codes[word.first] != code, wanted(word.first) { built.add(code, text.from[word.first], text.from[word.first]) }
            for at in word.first..<word.end { built.add(text, at) }
        }
    }

    private static func rebuilt(_ words: Words, _ size: Int, _ write: (inout AlignedText, Slice) -> Void) -> Words {
        var built = AlignedText(capacity: size)
        var ranges: [Range<Int>] = []
        ranges.reserveCapacity(words.ranges.count)
        words.each { word in
            let first = built.count
            if word.count > 0 { write(&built, word) }
            ranges.append(first..<built.count)
        }
        return Words(text: built, ranges: ranges)
    }

    private static let gpt2 = #"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"#

    private static func byteLevel(prefix: Bool, regex: Bool) throws -> PreTokenizer {
        let cut = regex ? split(try Pattern(gpt2), .isolated, invert: false) : nil
        return { words in
            let spaced = prefix ? prefixed(words, 0x20) { _ in true } : words
            return asBytes(cut?(spaced) ?? spaced)
        }
    }

    private static func asBytes(_ words: Words) -> Words {
        let text = words.text
        return rebuilt(words, text.count + text.count / 2) { built, word in
            for at in word.first..<word.end {
                utf8(text.codes[at]) { built.add(ByteCharacters.all[$0], text.from[at], text.to[at]) }
            }
        }
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
