/// The regular expressions of `tokenizer.json`: the part of Oniguruma's syntax that tokenizers use.
///
/// A platform's own engine knows other classes of characters, so the patterns are read here and matched against the
/// reference's tables. Backtracking; lookbehind of any bounded length.
struct Pattern: Sendable {
    private let root: any Node
    private let firsts: CharacterSet?

    private init(root: any Node) {
        self.root = root
        firsts = root.firsts()
    }

    /// Reads a pattern. Throws `UnsupportedTokenizer` where it holds what is not supported.
    init(_ source: String) throws {
        var reader = PatternReader(source)
        self.init(root: try reader.read())
    }

    /// Makes a pattern that matches a text as it is.
    init(literal text: String) {
        let parts = text.codes.map { One(CharacterSet($0)) }
        self.init(root: parts.count == 1 ? parts[0] : Sequence(parts))
    }

    /// Calls `found` with begin and end of each match in `slice`, from left to right.
    func each(_ slice: Slice, _ found: (Int, Int) -> Void) {
        var at = possible(slice, slice.first)
        while at <= slice.end {
            let end = root.match(slice, at) { $0 }
            if end >= 0 { found(at, end) }
            // An empty match behind a match that ended here would be found for ever.
            at = possible(slice, end > at ? end : at + 1)
        }
    }

    /// The first place from `from` on where a match may begin, or one that is behind the slice's end.
    private func possible(_ slice: Slice, _ from: Int) -> Int {
        guard let firsts else { return from }
        var at = from
        while at < slice.end, !firsts.contains(slice.codes[at]) { at += 1 }
        return at < slice.end ? at : slice.end + 1
    }
}

extension Json {
    /// Reads `{"Regex": …}` or `{"String": …}`.
    func pattern() throws -> Pattern {
        guard let pattern = try child("pattern") else { throw wrong("pattern", "an object") }
        if let regex = try pattern.textOrNil("Regex") { return try Pattern(regex) }
        return Pattern(literal: try pattern.text("String"))
    }
}

/// A part of a pattern; `match` returns where the whole match ends, or -1, by asking `rest` about what follows.
protocol Node: AnyObject, Sendable {
    func match(_ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int

    /// What the first character has to be, or nil where that is not known or none is needed.
    func firsts() -> CharacterSet?

    /// How many characters it takes at most; a large number stands for no bound.
    var longest: Int { get }

    /// Whether it may match without a character.
    var empty: Bool { get }
}

let unbounded = 1_000_000

final class One: Node {
    private let set: CharacterSet
    let longest = 1
    let empty = false

    init(_ set: CharacterSet) { self.set = set }

    func match(_ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int { fits(slice, at) ? rest(at + 1) : -1 }

    func fits(_ slice: Slice, _ at: Int) -> Bool { at < slice.end && set.contains(slice.codes[at]) }

    func firsts() -> CharacterSet? { set }
}

final class Sequence: Node {
    private let parts: [any Node]
    let longest: Int
    let empty: Bool

    init(_ parts: [any Node]) {
        self.parts = parts
        longest = min(unbounded, parts.reduce(0) { $0 + $1.longest })
        empty = parts.allSatisfy(\.empty)
    }

    func match(_ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int { from(0, slice, at, rest) }

    private func from(_ part: Int, _ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int {
        if part == parts.count { return rest(at) }
        if part == parts.count - 1 { return parts[part].match(slice, at, rest) }
        return parts[part].match(slice, at) { from(part + 1, slice, $0, rest) }
    }

    func firsts() -> CharacterSet? {
        var sets: [CharacterSet] = []
        for part in parts where !(part is Look || part is Anchor) {
            guard let set = part.firsts() else { return nil }
            sets.append(set)
            if !part.empty { return CharacterSet.union(sets) }
        }
        return nil
    }
}

final class Either: Node {
    private let options: [any Node]
    private let starts: [CharacterSet?]
    let longest: Int
    let empty: Bool

    init(_ options: [any Node]) {
        self.options = options
        starts = options.map { $0.empty ? nil : $0.firsts() }
        longest = options.map(\.longest).max() ?? 0
        empty = options.contains(where: \.empty)
    }

    func match(_ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int {
        for option in options.indices {
            if let start = starts[option], at >= slice.end || !start.contains(slice.codes[at]) { continue }
            let end = options[option].match(slice, at, rest)
            if end >= 0 { return end }
        }
        return -1
    }

    func firsts() -> CharacterSet? {
        let known = starts.compactMap { $0 }
        return known.count == options.count ? CharacterSet.union(known) : nil
    }
}

final class Repeat: Node {
    enum Kind { case greedy, lazy, possessive }

    private let of: any Node
    private let least: Int
    private let most: Int
    private let kind: Kind
    let longest: Int
    let empty: Bool

    init(_ of: any Node, least: Int, most: Int, kind: Kind) {
        self.of = of
        self.least = least
        self.most = most
        self.kind = kind
        longest = most == .max ? unbounded : min(unbounded, most * of.longest)
        empty = least == 0 || of.empty
    }

    func match(_ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int {
        if let one = of as? One { return simple(one, slice, at, rest) }
        return more(0, slice, at, rest)
    }

    /// Repeats one character without a call for each.
    private func simple(_ one: One, _ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int {
        var count = 0
        if kind == .lazy {
            while true {
                if count >= least {
                    let end = rest(at + count)
                    if end >= 0 { return end }
                }
                if count == most || !one.fits(slice, at + count) { return -1 }
                count += 1
            }
        }
        while count < most, one.fits(slice, at + count) { count += 1 }
        if kind == .possessive { return count >= least ? rest(at + count) : -1 }
        while count >= least {
            let end = rest(at + count)
            if end >= 0 { return end }
            count -= 1
        }
        return -1
    }

    private func more(_ count: Int, _ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int {
        if count >= least && kind == .lazy {
            let end = rest(at)
            return end >= 0 ? end : again(count, slice, at, rest)
        }
        let end = again(count, slice, at, rest)
        return end >= 0 || count < least ? end : rest(at)
    }

    private func again(_ count: Int, _ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int {
        if count >= most { return -1 }
        return of.match(slice, at) { $0 == at && count >= least ? -1 : more(count + 1, slice, $0, rest) }
    }

    func firsts() -> CharacterSet? { of.firsts() }
}

/// Looks ahead or behind without taking characters.
final class Look: Node {
    private let of: any Node
    private let ahead: Bool
    private let wanted: Bool
    let longest = 0
    let empty = true

    init(_ of: any Node, ahead: Bool, wanted: Bool) throws {
        if !ahead && of.longest >= unbounded { throw UnsupportedTokenizer("a lookbehind without bounds is not supported") }
        self.of = of
        self.ahead = ahead
        self.wanted = wanted
    }

    func match(_ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int {
        let there = ahead ? of.match(slice, at) { $0 } >= 0 : behind(slice, at)
        return there == wanted ? rest(at) : -1
    }

    private func behind(_ slice: Slice, _ at: Int) -> Bool {
        for first in stride(from: at, through: max(slice.first, at - of.longest), by: -1)
        where of.match(slice, first, { $0 == at ? $0 : -1 }) >= 0 {
            return true
        }
        return false
    }

    func firsts() -> CharacterSet? { nil }
}

/// A place in the text.
final class Anchor: Node {
    private let holds: @Sendable (Slice, Int) -> Bool
    let longest = 0
    let empty = true

    init(_ holds: @escaping @Sendable (Slice, Int) -> Bool) { self.holds = holds }

    func match(_ slice: Slice, _ at: Int, _ rest: (Int) -> Int) -> Int { holds(slice, at) ? rest(at) : -1 }

    func firsts() -> CharacterSet? { nil }
}
