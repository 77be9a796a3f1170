/// Reads JSON from UTF-8.
struct JsonReader {
    private static let deepest = 200
    private let bytes: [UInt8]
    private let strict: Bool
    private var at = 0
    private var depth = 0

    init(_ bytes: [UInt8], strict: Bool) {
        self.bytes = bytes
        self.strict = strict
    }

    mutating func file() throws -> Json {
        let value = try value()
        space()
        if at < bytes.count { throw broken("something behind its end") }
        return value
    }

    private func broken(_ what: String) -> WrongJson { WrongJson("it cannot be read: it has \(what) at byte \(at)") }

    private mutating func space() {
        while at < bytes.count, [0x20, 0x0A, 0x0D, 0x09].contains(bytes[at]) { at += 1 }
    }

    private mutating func takes(_ sign: Unicode.Scalar) -> Bool {
        let there = at < bytes.count && bytes[at] == UInt8(ascii: sign)
        if there { at += 1 }
        return there
    }

    private mutating func takes(word: StaticString) -> Bool {
        let length = word.utf8CodeUnitCount
        guard at + length <= bytes.count else { return false }
        for offset in 0..<length where bytes[at + offset] != word.utf8Start[offset] { return false }
        at += length
        return true
    }

    private mutating func value() throws -> Json {
        space()
        guard at < bytes.count else { throw broken("no value") }
        switch bytes[at] {
        case UInt8(ascii: "{"): return try nested { try $0.object() }
        case UInt8(ascii: "["): return try nested { try $0.array() }
        case UInt8(ascii: "\""): return .text(try text())
        default:
            if strict { return try literal() }
            if takes(word: "true") { return .flag(true) }
            if takes(word: "false") { return .flag(false) }
            if takes(word: "null") { return .null }
            return try number()
        }
    }

    private mutating func nested(_ read: (inout JsonReader) throws -> Json) throws -> Json {
        depth += 1
        if depth > Self.deepest { throw broken("more than \(Self.deepest) levels") }
        at += 1
        defer { depth -= 1 }
        return try read(&self)
    }

    private mutating func object() throws -> Json {
        var fields: [(key: String, value: Json)] = []
        var keys: Set<ExactText> = []
        space()
        if takes("}") { return .object(fields) }
        repeat {
            space()
            guard at < bytes.count, bytes[at] == UInt8(ascii: "\"") else { throw broken("no name of a field") }
            let key = try text()
            if strict, !keys.insert(ExactText(key)).inserted { throw WrongJson("\(key): the key is there more than once") }
            space()
            if !takes(":") { throw broken("no colon") }
            fields.append((key, try value()))
            space()
        } while takes(",")
        if !takes("}") { throw broken("an open object") }
        return .object(fields)
    }

    private mutating func array() throws -> Json {
        var values: [Json] = []
        space()
        if takes("]") { return .array(values) }
        repeat {
            values.append(try value())
            space()
        } while takes(",")
        if !takes("]") { throw broken("an open list") }
        return .array(values)
    }

    private mutating func literal() throws -> Json {
        let first = at
        while at < bytes.count, ![0x20, 0x0A, 0x0D, 0x09].contains(bytes[at]), !",:]}\"".utf8.contains(bytes[at]) { at += 1 }
        let literal = String(decoding: bytes[first..<at], as: UTF8.self)
        switch literal {
        case "": throw broken("no value")
        case "true": return .flag(true)
        case "false": return .flag(false)
        case "null": return .null
        default:
            if !Self.isNumber(bytes[first..<at]) { throw WrongJson("it cannot be read: \(literal.prefix(60)) is no value") }
            return .literal(literal)
        }
    }

    /// Whether a text is a number by JSON's own grammar: `-?(0|[1-9][0-9]*)(\.[0-9]+)?([eE][+-]?[0-9]+)?`.
    private static func isNumber(_ text: ArraySlice<UInt8>) -> Bool {
        var rest = text
        func takes(_ signs: String) -> Bool {
            guard let first = rest.first, signs.utf8.contains(first) else { return false }
            rest = rest.dropFirst()
            return true
        }
        func digits() -> Bool {
            let count = rest.prefix { (0x30...0x39).contains($0) }.count
            rest = rest.dropFirst(count)
            return count > 0
        }
        _ = takes("-")
        if !takes("0"), !digits() { return false }
        if takes("."), !digits() { return false }
        if takes("eE") {
            _ = takes("+-")
            if !digits() { return false }
        }
        return rest.isEmpty
    }

    private mutating func number() throws -> Json {
        let first = at
        var whole = 0
        var plain = true
        let negative = takes("-")
        while at < bytes.count {
            let byte = bytes[at]
            if (0x30...0x39).contains(byte) {
                if at - first < 15 { whole = whole * 10 + Int(byte - 0x30) } else { plain = false }
            } else if [UInt8(ascii: "."), UInt8(ascii: "e"), UInt8(ascii: "E"), UInt8(ascii: "+"), UInt8(ascii: "-")].contains(byte) {
                plain = false
            } else {
                break
            }
            at += 1
        }
        if at - first <= (negative ? 1 : 0) { throw broken("no value") }
        if plain { return .number(Double(negative ? -whole : whole)) }
        guard let number = Double(String(decoding: bytes[first..<at], as: UTF8.self)) else { throw broken("no number") }
        return .number(number)
    }

    private mutating func text() throws -> String {
        at += 1
        let first = at
        while at < bytes.count, bytes[at] != UInt8(ascii: "\""), bytes[at] != UInt8(ascii: "\\") { at += 1 }
        if at < bytes.count, bytes[at] == UInt8(ascii: "\"") {
            at += 1
            try refuseControls(first..<at - 1)
            return String(decoding: bytes[first..<at - 1], as: UTF8.self)
        }
        try refuseControls(first..<at)
        var read = Array(bytes[first..<at])
        while at < bytes.count {
            let byte = bytes[at]
            at += 1
            if byte == UInt8(ascii: "\"") { return String(decoding: read, as: UTF8.self) }
            if byte == UInt8(ascii: "\\") {
                read += try escaped()
            } else {
                if byte < 0x20 { try refuseControls(at - 1..<at) }
                read.append(byte)
            }
        }
        throw broken("an open text")
    }

    private func refuseControls(_ part: Range<Int>) throws {
        if strict, bytes[part].contains(where: { $0 < 0x20 }) { throw broken("a control character in a text") }
    }

    private mutating func escaped() throws -> [UInt8] {
        guard at < bytes.count else { throw broken("an open text") }
        let sign = bytes[at]
        at += 1
        switch sign {
        case UInt8(ascii: "n"): return [0x0A]
        case UInt8(ascii: "t"): return [0x09]
        case UInt8(ascii: "r"): return [0x0D]
        case UInt8(ascii: "b"): return [0x08]
        case UInt8(ascii: "f"): return [0x0C]
        case UInt8(ascii: "\""), UInt8(ascii: "\\"), UInt8(ascii: "/"): return [sign]
        case UInt8(ascii: "u"):
            var unit = try unit()
            if (0xD800..<0xDC00).contains(unit), takes(word: "\\u") {
                let low = try self.unit()
                if (0xDC00..<0xE000).contains(low) { unit = 0x10000 + (unit - 0xD800) << 10 + (low - 0xDC00) }
            }
            if strict, Unicode.Scalar(unit) == nil { throw broken("half of a pair") }
            // Half a pair becomes a question mark, as in the reference.
            return Array(String(Unicode.Scalar(unit) ?? "?").utf8)
        default: throw broken("an escape that is none")
        }
    }

    private mutating func unit() throws -> UInt32 {
        guard at + 4 <= bytes.count, bytes[at] != UInt8(ascii: "+"),
            let unit = UInt32(String(decoding: bytes[at..<at + 4], as: UTF8.self), radix: 16)
        else { throw broken("an escape that is none") }
        at += 4
        return unit
    }
}
