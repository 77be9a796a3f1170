/// Receives a token: its id, and the first and one past the last code point that it covers, counted as the word counts them.
typealias TokenSink = (Int, Int, Int) -> Void

/// What makes tokens of a word.
protocol TokenModel: Sendable {
    func tokens(_ word: Slice, _ sink: TokenSink) throws

    /// The id of a token, or nil.
    func id(_ token: [Code]) -> Int?
}

enum TokenModels {
    /// Reads the `model` of `tokenizer.json`. Throws `UnsupportedTokenizer` for what is not known here.
    ///
    /// `stored` is the vocabulary of a `tokenizer.bin`, and nil where `model` has it.
    static func read(_ model: Json, _ stored: StoredVocabulary? = nil) throws -> any TokenModel {
        switch (try model.textOrNil("type"), stored) {
        case ("WordPiece", let stored?): return try WordPiece(model, stored.words)
        case ("WordPiece", nil): return try WordPiece(model, try vocabulary(model))
        case ("Unigram", let stored?): return try Unigram(model, stored.words, stored.scores)
        case ("Unigram", nil):
            let (words, scores) = try scored(model)
            return try Unigram(model, words, scores)
        case ("BPE", nil): return try BytePairs(model)
        case (let kind, _):
            throw UnsupportedTokenizer(
                "tokenizer.json has a model of the kind \(kind ?? "null"); WordPiece, Unigram and BPE are supported")
        }
    }

    static func vocabulary(_ model: Json) throws -> GrowingTrie {
        guard case .object(let words)? = model.present("vocab") else { throw UnsupportedTokenizer("tokenizer.json has no vocab") }
        var trie = GrowingTrie(capacity: 4 * words.count)
        for (word, id) in words {
            guard let id = id.whole else { throw UnsupportedTokenizer("tokenizer.json: the id of \(word) is no whole number") }
            trie.add(word.codes, id)
        }
        return trie
    }

    private static func scored(_ model: Json) throws -> (GrowingTrie, [Double]) {
        let entries = try model.array("vocab")
        var words = GrowingTrie(capacity: 4 * entries.count)
        var scores: [Double] = []
        scores.reserveCapacity(entries.count)
        for entry in entries {
            guard case .array(let pair) = entry, pair.count == 2, let word = pair[0].string, case .number(let score) = pair[1] else {
                throw UnsupportedTokenizer("tokenizer.json: entry \(scores.count) of vocab is not a token with its score")
            }
            words.add(word.codes, scores.count)
            scores.append(score)
        }
        return (words, scores)
    }
}

/// The longest word first, then the longest continuation.
struct WordPiece<Words: Trie>: TokenModel {
    private let words: Words
    private let continuation: Int
    private let unknown: Int
    private let longestWord: Int

    init(_ model: Json, _ words: Words) throws {
        self.words = words
        let name = try model.text("unk_token")
        guard let unknown = words.id(name.codes) else {
            throw UnsupportedTokenizer("tokenizer.json: the unk_token \(name) is not in the vocabulary")
        }
        self.unknown = unknown
        continuation = words.node((try model.textOrNil("continuing_subword_prefix") ?? "##").codes)
        longestWord = try model.number("max_input_chars_per_word", 100)
    }

    func id(_ token: [Code]) -> Int? { words.id(token) }

    func tokens(_ word: Slice, _ sink: TokenSink) {
        if word.count > longestWord { return sink(unknown, word.first, word.end) }
        var found: [(id: Int, end: Int)] = []
        found.reserveCapacity(word.count)
        var first = word.first
        while first < word.end {
            var longest: (id: Int, end: Int)?
            words.each(word, first, from: first > word.first ? continuation : 0) { end, id in longest = (id, end) }
            guard let longest else { return sink(unknown, word.first, word.end) }
            found.append(longest)
            first = longest.end
        }
        first = word.first
        for (id, end) in found {
            sink(id, first, end)
            first = end
        }
    }
}

private let unknownPenalty = 10.0

/// The most probable split of a word (Viterbi).
struct Unigram<Words: Trie>: TokenModel {
    private let words: Words
    private let scores: [Double]
    private let unknown: Int?
    private let unknownScore: Double
    private let byteFallback: Bool

    init(_ model: Json, _ words: Words, _ scores: [Double]) throws {
        guard let lowest = scores.min() else { throw UnsupportedTokenizer("tokenizer.json has an empty vocab") }
        self.words = words
        self.scores = scores
        unknown = model.present("unk_id") == nil ? nil : try model.number("unk_id")
        unknownScore = lowest - unknownPenalty
        byteFallback = try model.flag("byte_fallback")
    }

    func id(_ token: [Code]) -> Int? { words.id(token) }

    func tokens(_ word: Slice, _ sink: TokenSink) throws {
        var best = [Best](repeating: Best(score: 0, begin: -1, id: 0), count: word.count + 1)
        for first in 0..<word.count {
            let before = best[first].score
            var single = false
            words.each(word, word.first + first, from: 0) { end, id in
                best[end - word.first].relax(before + scores[id], first, id)
                if end - word.first == first + 1 { single = true }
            }
            if single { continue }
            guard let unknown else { throw UnsupportedTokenizer("a character has no token, and tokenizer.json has no unk_id") }
            best[first + 1].relax(before + unknownScore, first, unknown)
        }
        emit(word, &best, sink)
    }

    /// The best way found so far to a place in a word: its score, and where its last token begins, and which that is.
    private struct Best {
        var score: Double
        var begin: Int
        var id: Int

        mutating func relax(_ score: Double, _ begin: Int, _ id: Int) {
            if self.begin < 0 || score > self.score { self = Best(score: score, begin: begin, id: id) }
        }
    }

    private func emit(_ word: Slice, _ best: inout [Best], _ sink: TokenSink) {
        // The way is found from its end, and written over what it no longer needs: where each token's next one ends.
        var end = word.count
        var next = 0
        while end > 0 {
            let begin = best[end].begin
            best[end].begin = next
            next = end
            end = begin
        }
        var first = 0
        var last = next
        while last > 0 {
            // Unknown characters side by side are one unknown token.
            while best[last].id == unknown, best[last].begin > 0, best[best[last].begin].id == unknown { last = best[last].begin }
            let id = best[last].id
            if id == unknown { unknownTokens(word, first, last, sink) } else { sink(id, word.first + first, word.first + last) }
            first = last
            last = best[last].begin
        }
    }

    private func unknownTokens(_ word: Slice, _ first: Int, _ last: Int, _ sink: TokenSink) {
        let begin = word.first + first
        let end = word.first + last
        let text = Array(word.codes[begin..<end])
        let whole = words.id(text)
        if byteFallback && whole == nil {
            var bytes: [Int] = []
            for code in text { utf8(code) { bytes.append($0) } }
            let ids = bytes.compactMap { words.id(Self.byteToken($0)) }
            if ids.count == bytes.count { return ids.forEach { sink($0, begin, end) } }
        }
        sink(whole ?? unknown!, begin, end)
    }

    private static func byteToken(_ byte: Int) -> [Code] {
        let digits = String(byte, radix: 16, uppercase: true)
        return "<0x\(digits.count < 2 ? "0" : "")\(digits)>".codes
    }
}

/// Merges of neighbours, the earliest learnt first.
struct BytePairs: TokenModel {
    private let words: GrowingTrie
    private let merges: [UInt64: (rank: Int, id: Int)]
    private let unknown: Int?
    private let whole: Bool
    private let fuse: Bool

    init(_ model: Json) throws {
        for name in ["dropout", "continuing_subword_prefix", "end_of_word_suffix"] {
            guard let value = model.present(name), value.string != "" else { continue }
            throw UnsupportedTokenizer("tokenizer.json: the BPE model has a \(name), which is not supported")
        }
        if try model.flag("byte_fallback") { throw UnsupportedTokenizer("tokenizer.json: a BPE model with byte_fallback is not supported") }
        words = try TokenModels.vocabulary(model)
        var merges: [UInt64: (rank: Int, id: Int)] = [:]
        for (rank, entry) in try model.array("merges").enumerated() {
            let (first, second) = try Self.parts(entry)
            guard let one = words.id(first), let other = words.id(second), let both = words.id(first + second) else {
                throw UnsupportedTokenizer("tokenizer.json: merge \(rank) has a token that is not in the vocabulary")
            }
            merges[Self.pair(one, other)] = (rank, both)
        }
        self.merges = merges
        unknown = try model.textOrNil("unk_token").flatMap { [words] in words.id($0.codes) }
        whole = try model.flag("ignore_merges")
        fuse = try model.flag("fuse_unk")
    }

    private static func parts(_ entry: Json) throws -> ([Code], [Code]) {
        if case .array(let pair) = entry, pair.count == 2, let first = pair[0].string, let second = pair[1].string {
            return (first.codes, second.codes)
        }
        guard let codes = entry.string?.codes, let space = codes.firstIndex(of: 0x20) else {
            throw UnsupportedTokenizer("tokenizer.json has a merge that is not two tokens")
        }
        return (Array(codes[..<space]), Array(codes[(space + 1)...]))
    }

    private static func pair(_ first: Int, _ second: Int) -> UInt64 { UInt64(first) << 32 | UInt64(second) }

    func id(_ token: [Code]) -> Int? { words.id(token) }

    func tokens(_ word: Slice, _ sink: TokenSink) {
        if whole, let id = words.id(Array(word.codes[word.first..<word.end])) { return sink(id, word.first, word.end) }
        var parts: [Part] = []
        parts.reserveCapacity(word.count)
        for at in word.first..<word.end {
            guard let id = words.id(word.codes[at]) ?? unknown else { continue }
            if fuse, id == unknown, parts.last?.id == unknown {
                parts[parts.count - 1].end = at + 1
            } else {
                parts.append(Part(id: id, end: at + 1))
            }
        }
        merge(&parts)
        var first = word.first
        for part in parts {
            sink(part.id, first, part.end)
            first = part.end
        }
    }

    private struct Part {
        var id: Int
        var end: Int
        // What it makes with the part behind it.
        var merge: (rank: Int, id: Int)?
    }

    /// Merges until no neighbours can be.
    private func merge(_ parts: inout [Part]) {
        // Only what lies beside a merge changes with it.
        for at in parts.indices { look(&parts, at) }
        while true {
            var place = -1
            var lowest = Int.max
            for at in parts.indices {
                if let rank = parts[at].merge?.rank, rank < lowest { (place, lowest) = (at, rank) }
            }
            if place < 0 { return }
            parts[place].id = parts[place].merge!.id
            parts[place].end = parts[place + 1].end
            parts.remove(at: place + 1)
            look(&parts, place)
            if place > 0 { look(&parts, place - 1) }
        }
    }

    private func look(_ parts: inout [Part], _ at: Int) {
        parts[at].merge = at + 1 < parts.count ? merges[Self.pair(parts[at].id, parts[at + 1].id)] : nil
    }
}
