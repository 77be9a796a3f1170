/// The regular expressions of `tokenizer.json`: the part of Oniguruma's syntax that tokenizers use.
///
/// A platform's own engine knows other classes of characters, so the patterns are read here and matched against the
/// reference's tables. Backtracking; lookbehind of any bounded length.
struct Pattern: Sendable {
    private let root: Node
    private let firsts: CharacterTest?

    private init(root: Node) {
        self.root = root
        firsts = root.firsts
    }

    /// Reads a pattern. Throws `UnsupportedTokenizer` where it holds what is not supported.
    init(_ source: String) throws {
        var reader = PatternReader(source)
        self.init(root: try reader.read())
    }

    /// Makes a pattern that matches a text as it is.
    init(literal text: String) {
        let parts = text.codes.map { code in One { $0 == code } }
        self.init(root: parts.count == 1 ? parts[0] : Sequence(parts))
    }

    /// Calls `found` with begin and end of each match in `codes`, from left to right.
    func each(_ codes: [Code], _ found: (Int, Int) -> Void) {
        var at = 0
        while at <= codes.count {
            let possible = firsts.map { at < codes.count && $0(codes[at]) } ?? true
            let end = possible ? root.match(codes, at) { $0 } : -1
            if end < 0 {
                at += 1
            } else {
                found(at, end)
                // An empty match behind a match that ended here would be found for ever.
                at = end > at ? end : at + 1
            }
        }
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

typealias CharacterTest = @Sendable (Code) -> Bool

/// A part of a pattern; `match` returns where the whole match ends, or -1, by asking `next` about what follows.
protocol Node: Sendable {
    func match(_ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int

    /// What the first character has to be, or nil where that is not known or none is needed.
    var firsts: CharacterTest? { get }

    /// How many characters it takes at most; a large number stands for no bound.
    var longest: Int { get }

    /// Whether it may match without a character.
    var empty: Bool { get }
}

let unbounded = 1_000_000

struct One: Node {
    let test: CharacterTest
    let longest = 1
    let empty = false

    init(_ test: @escaping CharacterTest) { self.test = test }

    func match(_ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        at < codes.count && test(codes[at]) ? next(at + 1) : -1
    }

    var firsts: CharacterTest? { test }
}

struct Sequence: Node {
    private let parts: [any Node]
    let longest: Int
    let empty: Bool

    init(_ parts: [any Node]) {
        self.parts = parts
        longest = min(unbounded, parts.reduce(0) { $0 + $1.longest })
        empty = parts.allSatisfy(\.empty)
    }

    func match(_ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int { from(0, codes, at, next) }

    private func from(_ part: Int, _ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        part == parts.count ? next(at) : parts[part].match(codes, at) { from(part + 1, codes, $0, next) }
    }

    var firsts: CharacterTest? {
        var tests: [CharacterTest] = []
        for part in parts where !(part is Look || part is Anchor) {
            guard let test = part.firsts else { return nil }
            tests.append(test)
            if !part.empty {
                let all = tests
                return all.count == 1 ? all[0] : { code in all.contains { $0(code) } }
            }
        }
        return nil
    }
}

struct Either: Node {
    private let options: [(node: any Node, start: CharacterTest?)]
    let longest: Int
    let empty: Bool

    init(_ options: [any Node]) {
        self.options = options.map { ($0, $0.empty ? nil : $0.firsts) }
        longest = options.map(\.longest).max() ?? 0
        empty = options.contains(where: \.empty)
    }

    func match(_ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        for option in options {
            if let start = option.start, at >= codes.count || !start(codes[at]) { continue }
            let end = option.node.match(codes, at, next)
            if end >= 0 { return end }
        }
        return -1
    }

    var firsts: CharacterTest? {
        let starts = options.compactMap(\.start)
        if empty || starts.count < options.count { return nil }
        return { code in starts.contains { $0(code) } }
    }
}

struct Repeat: Node {
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

    func match(_ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        if let one = of as? One { return simple(one, codes, at, next) }
        return more(0, codes, at, next)
    }

    /// Repeats one character without a call for each.
    private func simple(_ one: One, _ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        var count = 0
        if kind == .lazy {
            while true {
                if count >= least {
                    let end = next(at + count)
                    if end >= 0 { return end }
                }
                if count == most || at + count >= codes.count || !one.test(codes[at + count]) { return -1 }
                count += 1
            }
        }
        while count < most, at + count < codes.count, one.test(codes[at + count]) { count += 1 }
        if kind == .possessive { return count >= least ? next(at + count) : -1 }
        while count >= least {
            let end = next(at + count)
            if end >= 0 { return end }
            count -= 1
        }
        return -1
    }

    private func more(_ count: Int, _ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        if count >= least && kind == .lazy {
            let end = next(at)
            return end >= 0 ? end : again(count, codes, at, next)
        }
        let end = again(count, codes, at, next)
        return end >= 0 || count < least ? end : next(at)
    }

    private func again(_ count: Int, _ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        if count >= most { return -1 }
        return of.match(codes, at) { $0 == at && count >= least ? -1 : more(count + 1, codes, $0, next) }
    }

    var firsts: CharacterTest? { of.firsts }
}

/// Looks ahead or behind without taking characters.
struct Look: Node {
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

    func match(_ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int {
        let there = ahead ? of.match(codes, at) { $0 } >= 0 : behind(codes, at)
        return there == wanted ? next(at) : -1
    }

    private func behind(_ codes: [Code], _ at: Int) -> Bool {
        for first in stride(from: at, through: max(0, at - of.longest), by: -1)
        where of.match(codes, first, { $0 == at ? $0 : -1 }) >= 0 {
            return true
        }
        return false
    }

    var firsts: CharacterTest? { nil }
}

/// A place in the text.
struct Anchor: Node {
    private let holds: @Sendable ([Code], Int) -> Bool
    let longest = 0
    let empty = true

    init(_ holds: @escaping @Sendable ([Code], Int) -> Bool) { self.holds = holds }

    func match(_ codes: [Code], _ at: Int, _ next: (Int) -> Int) -> Int { holds(codes, at) ? next(at) : -1 }

    var firsts: CharacterTest? { nil }
}
