/// Reads a pattern in Oniguruma's syntax.
struct PatternReader {
    private let codes: [Code]
    private let shown: String
    private var at = 0

    init(_ source: String) {
        codes = source.codes
        shown = String(source.prefix(80))
    }

    /// Reads the whole pattern. Throws `UnsupportedTokenizer` where it holds what is not supported.
    mutating func read() throws -> any Node {
        let node = try either()
        if at < codes.count { throw unsupported("an unmatched bracket") }
        return node
    }

    private func unsupported(_ what: String) -> UnsupportedTokenizer {
        UnsupportedTokenizer("the pattern \(shown) in tokenizer.json has \(what) at character \(at), which is not supported")
    }

    private mutating func takes(_ text: String) -> Bool {
        let wanted = text.codes
        let there = at + wanted.count <= codes.count && codes[at..<at + wanted.count].elementsEqual(wanted)
        if there { at += wanted.count }
        return there
    }

    private func stands(_ sign: Unicode.Scalar) -> Bool { at < codes.count && codes[at] == sign.value }

    private mutating func either() throws -> any Node {
        var options = [try sequence()]
        while takes("|") { options.append(try sequence()) }
        return options.count == 1 ? options[0] : Either(options)
    }

    private mutating func sequence() throws -> any Node {
        var parts: [any Node] = []
        while at < codes.count, !stands("|"), !stands(")") { parts.append(try repeated(try single())) }
        return parts.count == 1 ? parts[0] : Sequence(parts)
    }

    private mutating func repeated(_ node: any Node) throws -> any Node {
        var all = node
        while let (least, most) = counts() {
            let kind: Repeat.Kind = takes("?") ? .lazy : takes("+") ? .possessive : .greedy
            if kind == .possessive && !(all is One) { throw unsupported("a possessive group") }
            all = Repeat(all, least: least, most: most, kind: kind)
        }
        return all
    }

    private mutating func counts() -> (Int, Int)? {
        if takes("*") { return (0, .max) }
        if takes("+") { return (1, .max) }
        if takes("?") { return (0, 1) }
        return counted()
    }

    private mutating func counted() -> (Int, Int)? {
        let begins = at
        if takes("{") {
            let least = digits()
            let comma = takes(",")
            let most = digits()
            if takes("}"), least != nil || most != nil {
                return (least ?? 0, comma ? most ?? .max : least ?? 0)
            }
        }
        at = begins
        return nil
    }

    private mutating func digits() -> Int? {
        var value: Int?
        while at < codes.count, (0x30...0x39).contains(codes[at]), (value ?? 0) < unbounded {
            value = (value ?? 0) * 10 + Int(codes[at] - 0x30)
            at += 1
        }
        return value
    }

    private mutating func single() throws -> any Node {
        if takes("(") { return try group() }
        if takes("[") { return One(try characterClass()) }
        if takes(".") { return One(CharacterSet(0x0A).inverted()) }
        if takes("^") { return Anchor { slice, at in at == slice.first || slice.codes[at - 1] == 0x0A } }
        if takes("$") { return Anchor { slice, at in at == slice.end || slice.codes[at] == 0x0A } }
        if takes("\\") { return try escaped() }
        if stands("*") || stands("+") || stands("?") { throw unsupported("a repetition of nothing") }
        let code = codes[at]
        at += 1
        return One(CharacterSet(code))
    }

    private static let looks = [("?=", true, true), ("?!", true, false), ("?<=", false, true), ("?<!", false, false)]

    private mutating func group() throws -> any Node {
        // Whether it looks ahead and for what is there; nil for a plain group.
        var look: (ahead: Bool, wanted: Bool)?
        for (sign, ahead, wanted) in Self.looks where look == nil && takes(sign) { look = (ahead, wanted) }
        if look == nil, !takes("?:"), takes("?") { throw unsupported("(?") }
        let inside = try either()
        if !takes(")") { throw unsupported("an open bracket") }
        guard let look else { return inside }
        return try Look(inside, ahead: look.ahead, wanted: look.wanted)
    }

    private mutating func escaped() throws -> any Node {
        if takes("A") { return Anchor { slice, at in at == slice.first } }
        if takes("z") { return Anchor { slice, at in at == slice.end } }
        if takes("Z") {
            return Anchor { slice, at in at == slice.end || (at == slice.end - 1 && slice.codes[at] == 0x0A) }
        }
        if takes("b") { return edge(wanted: true) }
        if takes("B") { return edge(wanted: false) }
        return One(try classOrCharacter())
    }

    /// Where a word begins or ends, or every other place.
    private func edge(wanted: Bool) -> any Node {
        let words = CharacterTables.set("regex_word")
        let inWord: @Sendable (Slice, Int) -> Bool = { slice, at in
            slice.first <= at && at < slice.end && words.contains(slice.codes[at])
        }
        return Anchor { slice, at in (inWord(slice, at - 1) != inWord(slice, at)) == wanted }
    }

    private static let classes = [("d", "category_Nd"), ("s", "regex_space"), ("w", "regex_word")]

    /// Reads what stands behind a backslash, in a class or outside.
    private mutating func classOrCharacter() throws -> CharacterSet {
        if at >= codes.count { throw unsupported("a backslash at its end") }
        for (letter, name) in Self.classes {
            if takes(letter) { return CharacterTables.set(name) }
            if takes(letter.uppercased()) { return CharacterTables.set(name).inverted() }
        }
        if takes("p{") { return try property(negated: false) }
        if takes("P{") { return try property(negated: true) }
        return CharacterSet(try character())
    }

    /// Reads one character behind a backslash.
    private mutating func character() throws -> Code {
        if takes("x{") {
            guard let code = Code(try until("}"), radix: 16), code <= 0x10FFFF else { throw unsupported("a number that is none") }
            return code
        }
        if at >= codes.count { throw unsupported("a backslash at its end") }
        let sign = codes[at]
        at += 1
        switch Unicode.Scalar(sign) {
        case "x":
            let end = min(at + 2, codes.count)
            guard let code = Code(Self.string(codes[at..<end]), radix: 16) else { throw unsupported("a number that is none") }
            at = end
            return code
        case "n": return 0x0A
        case "t": return 0x09
        case "r": return 0x0D
        case "f": return 0x0C
        case "v": return 0x0B
        case .some("0"..."9"), .some("A"..."Z"), .some("a"..."z"): throw unsupported("an escape")
        default: return sign
        }
    }

    private static func string(_ codes: ArraySlice<Code>) -> String {
        String(String.UnicodeScalarView(codes.compactMap(Unicode.Scalar.init)))
    }

    private mutating func until(_ end: Unicode.Scalar) throws -> String {
        let first = at
        while at < codes.count, !stands(end) { at += 1 }
        if at == codes.count { throw unsupported("no \(end)") }
        at += 1
        return Self.string(codes[first..<at - 1])
    }

    private static let longNames = [
        "letter": "L", "mark": "M", "number": "N", "punctuation": "P", "symbol": "S", "separator": "Z",
        "punct": "P", "control": "Cc", "cntrl": "Cc", "format": "Cf",
    ]

    private mutating func property(negated: Bool) throws -> CharacterSet {
        let written = try until("}")
        let opposite = written.hasPrefix("^")
        let name = opposite ? String(written.dropFirst()) : written
        let plain = name.lowercased().filter { $0.isLetter || $0.isNumber }
        let found: CharacterSet? =
            switch plain {
            case "cased": CharacterTables.set("regex_cased")
            case "caseignorable": CharacterTables.set("regex_case_ignorable")
            case "space", "whitespace": CharacterTables.set("regex_space")
            case "word": CharacterTables.set("regex_word")
            default: CharacterTables.category(Self.longNames[plain] ?? plain.prefix(1).uppercased() + plain.dropFirst())
            }
        guard let set = found else { throw unsupported("the property \(name)") }
        return negated != opposite ? set.inverted() : set
    }

    private mutating func characterClass() throws -> CharacterSet {
        let negated = takes("^")
        var all: [CharacterSet] = []
        var options: [CharacterSet] = []
        var empty = true
        while true {
            if at >= codes.count { throw unsupported("an open class") }
            if !empty, takes("]") { break }
            empty = false
            if takes("&&") {
                all.append(CharacterSet.union(options))
                options = []
            } else if takes("[:") {
                throw unsupported("[:")
            } else if takes("[") {
                options.append(try characterClass())
            } else {
                options.append(try range())
            }
        }
        all.append(CharacterSet.union(options))
        let inside = CharacterSet.intersection(all)
        return negated ? inside.inverted() : inside
    }

    private mutating func range() throws -> CharacterSet {
        let begins = at
        var first = codes[at]
        if takes("\\") {
            if at < codes.count, "dDsSwWpP".codes.contains(codes[at]) { return try classOrCharacter() }
            first = try character()
        } else {
            at += 1
        }
        if at + 1 >= codes.count || !stands("-") || codes[at + 1] == ("]" as Unicode.Scalar).value { return CharacterSet(first) }
        at += 1
        var last = codes[at]
        if takes("\\") { last = try character() } else { at += 1 }
        if last < first {
            at = begins
            throw unsupported("a range that ends before it begins")
        }
        return CharacterSet([first...last])
    }
}
