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

    private let asWritten: [Code: [Added]]
    private let normalised: [Code: [Added]]
    private let normalizer: Normalizer?
    private let word = CharacterTables.set("regex_word")
    private let space = CharacterTables.set("space")

    init(_ entries: [Json], _ normalizer: Normalizer?) throws {
        self.normalizer = normalizer
        asWritten = try Self.group(try entries.filter { !(try $0.flag("normalized")) }) { $0 }
        normalised = try Self.group(try entries.filter { try $0.flag("normalized") }) { codes in
            normalizer?(AlignedText(codes: codes, from: codes.map { _ in 0 }, to: codes.map { _ in 0 })).codes ?? codes
        }
    }

    private static func group(_ entries: [Json], _ spell: ([Code]) -> [Code]) throws -> [Code: [Added]] {
        let tokens = try entries.map { entry in
            Added(
                id: try entry.number("id"), codes: spell(try entry.text("content").codes),
                singleWord: try entry.flag("single_word"), left: try entry.flag("lstrip"), right: try entry.flag("rstrip"))
        }
        return Dictionary(grouping: tokens.filter { !$0.codes.isEmpty }) { $0.codes[0] }
            .mapValues { $0.sorted { $0.codes.count > $1.codes.count } }
    }

    /// Finds the tokens, and normalises what lies between them.
    func split(_ text: AlignedText) -> [Part] {
        find(text, asWritten).flatMap { part in
            part.id != nil ? [part] : find(normalizer?(part.text) ?? part.text, normalised)
        }
    }

    private func find(_ text: AlignedText, _ tokens: [Code: [Added]]) -> [Part] {
        if text.count == 0 { return [] }
        var parts: [Part] = []
        var kept = 0
        var at = 0
        while at < text.count, !tokens.isEmpty {
            guard let added = tokens[text.codes[at]]?.first(where: { text.codes[at...].starts(with: $0.codes) }) else {
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

    private func inWord(_ codes: [Code], _ at: Int) -> Bool { codes.indices.contains(at) && word.contains(codes[at]) }

    private func spacesBefore(_ codes: [Code], _ at: Int, _ least: Int) -> Int {
        var first = at
        while first > least, space.contains(codes[first - 1]) { first -= 1 }
        return first
    }

    private func spacesAfter(_ codes: [Code], _ at: Int) -> Int {
        var end = at
        while end < codes.count, space.contains(codes[end]) { end += 1 }
        return end
    }
}
