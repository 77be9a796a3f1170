import Foundation

/// SentencePiece's own map of characters (`Precompiled`): a trie over UTF-8 in two arrays, and what it leads to.
///
/// As the reference does, a group of code points that is shown as one character, of fewer than six bytes, is looked up
/// as a whole, and otherwise code point by code point; and of several entries that fit, the shortest is taken.
struct CharacterMapOfSentencePiece: Sendable {
    private let trie: [UInt32]
    private let texts: [UInt8]

    static func read(_ base64: String) throws -> Normalizer {
        guard let data = Data(base64Encoded: base64) else {
            throw UnsupportedTokenizer("tokenizer.json has a precompiled_charsmap that is not base64")
        }
        if data.isEmpty { return { $0 } }
        let bytes = [UInt8](data)
        let size = bytes.count >= 4 ? Int(word(bytes, 0)) : -1
        if size < 4 || size % 4 != 0 || size > bytes.count - 4 {
            throw UnsupportedTokenizer("tokenizer.json has a precompiled_charsmap of \(bytes.count) bytes that ends within its trie")
        }
        let trie = (0..<size / 4).map { word(bytes, 4 + 4 * $0) }
        let map = CharacterMapOfSentencePiece(trie: trie, texts: Array(bytes[(4 + size)...]))
        return { map.apply($0) }
    }

    private static func word(_ bytes: [UInt8], _ at: Int) -> UInt32 {
        (0..<4).reduce(0) { $0 | UInt32(bytes[at + $1]) << (8 * UInt32($1)) }
    }

    private func apply(_ text: AlignedText) -> AlignedText {
        var built = AlignedText(capacity: text.count)
        var first = 0
        while first < text.count {
            let end = Graphemes.end(text.codes, first)
            let bytes = text.codes[first..<end].reduce(0) { $0 + Self.utf8Length($1) }
            if bytes < Self.largestGroup, let whole = find(text.codes[first..<end]) {
                for code in whole { built.add(code, text.from[first], text.to[end - 1]) }
            } else {
                for at in first..<end {
                    if let one = find(text.codes[at...at]) {
                        for code in one { built.add(code, text.from[at], text.to[at]) }
                    } else {
                        built.add(text, at)
                    }
                }
            }
            first = end
        }
        return built
    }

    private static let largestGroup = 6

    private static func utf8Length(_ code: Code) -> Int { code < 0x80 ? 1 : code < 0x800 ? 2 : code < 0x10000 ? 3 : 4 }

    private func find(_ codes: ArraySlice<Code>) -> [Code]? {
        var place = Self.offset(trie[0])
        for code in codes {
            for byte in UTF8.encode(Unicode.Scalar(code)!)! {
                if byte == 0 { return nil }
                place ^= Int(byte)
                guard trie.indices.contains(place) else { return nil }
                let unit = trie[place]
                if unit & (1 << 31 | 0xFF) != UInt32(byte) { return nil }
                place ^= Self.offset(unit)
                guard trie.indices.contains(place) else { return nil }
                if unit >> 8 & 1 == 1 { return text(Int(trie[place] & 0x7FFF_FFFF)) }
            }
        }
        return nil
    }

    private static func offset(_ unit: UInt32) -> Int { Int(unit >> 10) << Int((unit & 1 << 9) >> 6) }

    private func text(_ at: Int) -> [Code] {
        guard at < texts.count else { return [] }
        return String(decoding: texts[at...].prefix { $0 != 0 }, as: UTF8.self).codes
    }
}

/// Where a group of code points that is shown as one character ends (Unicode's text segmentation, UAX 29).
enum Graphemes {
    private enum Kind: String, CaseIterable {
        case control = "Control"
        case prepend = "Prepend"
        case extend = "Extend"
        case flag = "Regional_Indicator"
        case spacing = "SpacingMark"
        case leading = "L"
        case vowel = "V"
        case trailing = "T"
        case syllable = "LV"
        case closed = "LVT"
        case joiner = "ZWJ"
    }

    private static let kinds = Kind.allCases.map { ($0, CharacterTables.set("break_\($0.rawValue)")) }
    private static let pictographic = CharacterTables.set("break_Pictographic")

    static func end(_ codes: [Code], _ first: Int) -> Int {
        var at = first + 1
        var flags = kind(codes[first]) == .flag ? 1 : 0
        var picture = pictographic.contains(codes[first])
        while at < codes.count, joins(codes[at - 1], codes[at], flags, picture) {
            let kind = kind(codes[at])
            if kind == .flag { flags += 1 }
            picture = pictographic.contains(codes[at]) || (picture && (kind == .extend || kind == .joiner))
            at += 1
        }
        return at
    }

    private static func joins(_ one: Code, _ other: Code, _ flags: Int, _ picture: Bool) -> Bool {
        if one == 0x0D && other == 0x0A { return true }
        let left = kind(one)
        let right = kind(other)
        if left == .control || right == .control { return false }
        switch (left, right) {
        case (.leading, .leading), (.leading, .vowel), (.leading, .syllable), (.leading, .closed): return true
        case (.syllable, .vowel), (.syllable, .trailing), (.vowel, .vowel), (.vowel, .trailing): return true
        case (.closed, .trailing), (.trailing, .trailing): return true
        case (_, .extend), (_, .joiner), (_, .spacing), (.prepend, _): return true
        case (.joiner, _) where picture && pictographic.contains(other): return true
        case (.flag, .flag): return flags % 2 == 1
        default: return false
        }
    }

    private static func kind(_ code: Code) -> Kind? {
        (0x20...0x7E).contains(code) ? nil : kinds.first { $0.1.contains(code) }?.0
    }
}
