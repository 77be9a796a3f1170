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

    // The ranges of all kinds together, so that a character is searched for once and not once for each kind.
    private static let ranges: [(first: Code, last: Code, kind: Kind)] = {
        var all: [(first: Code, last: Code, kind: Kind)] = []
        for kind in Kind.allCases { CharacterTables.set("break_\(kind.rawValue)").each { all.append(($0, $1, kind)) } }
        return all.sorted { $0.first < $1.first }
    }()
    private static let pictographic = CharacterTables.set("break_Pictographic")

    static func end(_ codes: [Code], _ first: Int) -> Int {
        var at = first + 1
        var left = kind(codes[first])
        var flags = left == .flag ? 1 : 0
        var picture = pictographic.contains(codes[first])
        while at < codes.count {
            let right = kind(codes[at])
            let pictured = pictographic.contains(codes[at])
            let line = codes[at - 1] == 0x0D && codes[at] == 0x0A
            if !line, !joins(left, right, flags), !(left == .joiner && picture && pictured) { break }
            if right == .flag { flags += 1 }
            picture = pictured || (picture && (right == .extend || right == .joiner))
            left = right
            at += 1
        }
        return at
    }

    private static func joins(_ left: Kind?, _ right: Kind?, _ flags: Int) -> Bool {
        if left == .control || right == .control { return false }
        if right == .extend || right == .joiner || right == .spacing || left == .prepend { return true }
        switch left {
        case .leading: return right == .leading || right == .vowel || right == .syllable || right == .closed
        case .syllable, .vowel: return right == .vowel || right == .trailing
        case .closed, .trailing: return right == .trailing
        case .flag: return right == .flag && flags % 2 == 1
        default: return false
        }
    }

    private static func kind(_ code: Code) -> Kind? {
        if (0x20...0x7E).contains(code) { return nil }
        var low = 0
        var high = ranges.count
        while low < high {
            let middle = (low + high) / 2
            if ranges[middle].first <= code { low = middle + 1 } else { high = middle }
        }
        return low > 0 && code <= ranges[low - 1].last ? ranges[low - 1].kind : nil
    }
}
