/// A part of a text: either an added token (with its id) or text that is still to be cut.
struct Part {
    let text: AlignedText
    let id: Int?
}

/// Tokens that are found in a text before anything else, such as `[MASK]`.
struct AddedTokens: Sendable {
    private struct Added {
        let id: Int
        let codes: [Code]
        let singleWord: Bool
        let left: Bool
        let right: Bool
    }

    /// Tokens by what they begin with, the longest first.
    private struct Group {
        private let all: [Code: [Added]]
        // Few characters of a text begin a token, and a set is asked faster than a dictionary.
        private let firsts: CharacterSet

        init(_ tokens: [Added]) {
            let longestFirst = tokens.filter { !$0.codes.isEmpty }.sorted { $0.codes.count > $1.codes.count }
            all = Dictionary(grouping: longestFirst) { $0.codes[0] }
            firsts = CharacterSet.union(all.keys.map { CharacterSet($0) })
        }

        var isEmpty: Bool { all.isEmpty }

        func beginning(_ code: Code) -> [Added]? { firsts.contains(code) ? all[code] : nil }
    }

    private let asWritten: Group
    private let normalised: Group
    private let normalizer: Normalizer?
    private let words = CharacterTables.set("regex_word")
    private let spaces = CharacterTables.set("space")

    init(_ entries: [Json], _ normalizer: Normalizer?) throws {
        self.normalizer = normalizer
        asWritten = try Self.group(try entries.filter { !(try $0.flag("normalized")) }) { $0.codes }
        normalised = try Self.group(try entries.filter { try $0.flag("normalized") }) { text in
            normalizer?(AlignedText(text)).codes ?? text.codes
        }
    }

    private static func group(_ entries: [Json], _ spell: (String) -> [Code]) throws -> Group {
        Group(
            try entries.map { entry in
                Added(
                    id: try entry.number("id"), codes: spell(try entry.text("content")),
                    singleWord: try entry.flag("single_word"), left: try entry.flag("lstrip"), right: try entry.flag("rstrip"))
            })
    }

    /// Finds the tokens, and normalises what lies between them.
    func split(_ text: AlignedText) -> [Part] {
        find(text, asWritten).flatMap { part in
            part.id != nil ? [part] : find(normalizer?(part.text) ?? part.text, normalised)
        }
    }

    private func find(_ text: AlignedText, _ tokens: Group) -> [Part] {
        if text.count == 0 { return [] }
        if tokens.isEmpty { return [Part(text: text, id: nil)] }
        var parts: [Part] = []
        var kept = 0
        var at = 0
        while at < text.count {
            guard let added = tokens.beginning(text.codes[at])?.first(where: { text.codes[at...].starts(with: $0.codes) }) else {
                at += 1
                continue
            }
            let end = at + added.codes.count
            if !added.singleWord || !(inWord(text.codes, at - 1) || inWord(text.codes, end)) {
                let first = added.left ? spacesBefore(text.codes, at, kept) : at
                let last = added.right ? spacesAfter(text.codes, end) : end
                if kept < first { parts.append(Part(text: text.slice(kept, first), id: nil)) }
                parts.append(Part(text: text.slice(first, last), id: added.id))
                kept = last
            }
            at = end
        }
        if kept < text.count { parts.append(Part(text: text.slice(kept, text.count), id: nil)) }
        return parts
    }

    private func inWord(_ codes: [Code], _ at: Int) -> Bool { codes.indices.contains(at) && words.contains(codes[at]) }

    private func spacesBefore(_ codes: [Code], _ at: Int, _ least: Int) -> Int {
        var first = at
        while first > least, spaces.contains(codes[first - 1]) { first -= 1 }
        return first
    }

    private func spacesAfter(_ codes: [Code], _ at: Int) -> Int {
        var end = at
        while end < codes.count, spaces.contains(codes[end]) { end += 1 }
        return end
    }
}
