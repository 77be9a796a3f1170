/// Unicode's four normal forms, by the reference's own tables.
enum NormalForm: String, Sendable {
    case nfd = "NFD"
    case nfc = "NFC"
    case nfkd = "NFKD"
    case nfkc = "NFKC"

    private var compatible: Bool { self == .nfkd || self == .nfkc }
    private var composed: Bool { self == .nfc || self == .nfkc }

    func apply(_ text: AlignedText) -> AlignedText {
        if text.codes.allSatisfy({ $0 < Self.firstThatChanges }) { return text }
        var parts = decompose(text)
        order(&parts)
        return composed ? compose(parts) : parts
    }

    private func decompose(_ text: AlignedText) -> AlignedText {
        let canonical = CharacterTables.map("nfd")
        let more = compatible ? CharacterTables.map("nfkd") : nil
        var built = AlignedText(capacity: text.count + text.count / 2)
        for at in 0..<text.count {
            let code = text.codes[at]
            if code >= Self.syllables && code < Self.syllables + Self.syllableCount {
                let syllable = code - Self.syllables
                let trailing = syllable % Self.trailingCount
                built.add(Self.leading + syllable / (Self.vowelCount * Self.trailingCount), text.from[at], text.to[at])
                built.add(Self.vowels + syllable / Self.trailingCount % Self.vowelCount, text.from[at], text.to[at])
                if trailing > 0 { built.add(Self.trailing + trailing, text.from[at], text.to[at]) }
            } else if let becomes = more?[code] ?? canonical[code] {
                for one in becomes { built.add(one, text.from[at], text.to[at]) }
            } else {
                built.add(text, at)
            }
        }
        return built
    }

    /// Puts marks behind a letter into their order; equal ones stay as they are.
    private func order(_ text: inout AlignedText) {
        for at in text.codes.indices.dropFirst() {
            let rank = Ranks.of(text.codes[at])
            if rank == 0 { continue }
            var place = at
            while place > 0 && Ranks.of(text.codes[place - 1]) > rank { place -= 1 }
            if place < at {
                text.codes.insert(text.codes.remove(at: at), at: place)
                text.from.insert(text.from.remove(at: at), at: place)
                text.to.insert(text.to.remove(at: at), at: place)
            }
        }
    }

    private func compose(_ parts: AlignedText) -> AlignedText {
        var text = parts
        var gone = [Bool](repeating: false, count: text.count)
        var starter = -1
        var before = 0
        for at in text.codes.indices {
            let rank = Ranks.of(text.codes[at])
            // What lies between the two has all been composed, or is a mark of a lower rank.
            let free = starter >= 0 && (before == 0 || before < rank)
            if free, let composed = pair(text.codes[starter], text.codes[at]) {
                // It keeps the first one's place, as in the reference.
                text.codes[starter] = composed
                gone[at] = true
                continue
            }
            if rank == 0 {
                starter = at
                before = 0
            } else {
                before = rank
            }
        }
        var built = AlignedText(capacity: text.count)
        for at in text.codes.indices where !gone[at] { built.add(text, at) }
        return built
    }

    private func pair(_ first: Code, _ second: Code) -> Code? {
        if first >= Self.leading, first < Self.leading + Self.leadingCount, second >= Self.vowels,
            second < Self.vowels + Self.vowelCount
        {
            return Self.syllables
                + ((first - Self.leading) * Self.vowelCount + second - Self.vowels) * Self.trailingCount
        }
        if first >= Self.syllables, first < Self.syllables + Self.syllableCount,
            (first - Self.syllables) % Self.trailingCount == 0, second > Self.trailing,
            second < Self.trailing + Self.trailingCount
        {
            return first + second - Self.trailing
        }
        return Pairs.composed[UInt64(first) << 32 | UInt64(second)]
    }

    private static let firstThatChanges: Code = 0xA0
    private static let syllables: Code = 0xAC00
    private static let leading: Code = 0x1100
    private static let vowels: Code = 0x1161
    private static let trailing: Code = 0x11A7
    private static let leadingCount: Code = 19
    private static let vowelCount: Code = 21
    private static let trailingCount: Code = 28
    private static let syllableCount = leadingCount * vowelCount * trailingCount
}

/// The order of marks: 0 for what is none.
private enum Ranks {
    private static let lowest: Code = 0x300
    private static let ranks: [Code: Int] = {
        var found: [Code: Int] = [:]
        var rank = 1
        while let members = CharacterTables.find("order_\(rank)") {
            members.each { first, last in for code in first...last { found[code] = rank } }
            rank += 1
        }
        return found
    }()

    static func of(_ code: Code) -> Int { code < lowest ? 0 : ranks[code] ?? 0 }
}

private enum Pairs {
    static let composed: [UInt64: Code] = {
        var found: [UInt64: Code] = [:]
        CharacterTables.map("nfc").each { to, pair in found[UInt64(pair[0]) << 32 | UInt64(pair[1])] = to }
        return found
    }()
}
