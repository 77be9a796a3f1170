import Foundation

/// A JSON file is broken, or a field of it is not what it has to be.
struct WrongJson: Error, CustomStringConvertible {
    let description: String

    init(_ description: String) { self.description = description }
}

/// A value of a JSON file.
///
/// Foundation reads an object into a dictionary, in which two keys that look alike (é as one code point and as two) are
/// one key, since Swift compares strings so; a vocabulary may have both. So objects keep all their fields, in order.
indirect enum Json {
    case null
    case flag(Bool)
    case number(Double)
    case text(String)
    case array([Json])
    case object([(key: String, value: Json)])

    /// Reads a whole file. Throws `WrongJson` where it is no object.
    static func read(_ bytes: [UInt8]) throws -> Json {
        let file = try readAny(bytes)
        guard case .object = file else { throw WrongJson("it holds no object") }
        return file
    }

    /// Reads a value of any kind.
    static func readAny(_ bytes: [UInt8]) throws -> Json {
        var reader = JsonReader(bytes)
        return try reader.file()
    }

    /// Returns a field that is there and not null.
    func present(_ name: String) -> Json? {
        guard case .object(let fields) = self, let found = fields.last(where: { $0.key == name })?.value else { return nil }
        if case .null = found { return nil }
        return found
    }

    func text(_ name: String) throws -> String {
        guard let text = try textOrNil(name) else { throw wrong(name, "a text") }
        return text
    }

    func textOrNil(_ name: String) throws -> String? {
        guard let value = present(name) else { return nil }
        guard case .text(let text) = value else { throw wrong(name, "a text") }
        return text
    }

    func flag(_ name: String, _ byDefault: Bool = false) throws -> Bool { try flagOrNil(name) ?? byDefault }

    func flagOrNil(_ name: String) throws -> Bool? {
        guard let value = present(name) else { return nil }
        guard case .flag(let flag) = value else { throw wrong(name, "true or false") }
        return flag
    }

    func number(_ name: String, _ byDefault: Int? = nil) throws -> Int {
        guard let value = present(name) else {
            guard let byDefault else { throw wrong(name, "a whole number") }
            return byDefault
        }
        guard let number = value.whole else { throw wrong(name, "a whole number") }
        return number
    }

    func child(_ name: String) throws -> Json? {
        guard let value = present(name) else { return nil }
        guard case .object = value else { throw wrong(name, "an object") }
        return value
    }

    func array(_ name: String) throws -> [Json] {
        guard case .array(let values)? = present(name) else { throw wrong(name, "a list") }
        return values
    }

    func objects(_ name: String) throws -> [Json] {
        try array(name).map { value in
            guard case .object = value else { throw wrong(name, "a list of objects") }
            return value
        }
    }

    /// The value as a whole number, or nil.
    var whole: Int? {
        if case .number(let number) = self { Int(exactly: number) } else { nil }
    }

    /// The value as a text, or nil.
    var string: String? {
        if case .text(let text) = self { text } else { nil }
    }

    func doubleOrNil(_ name: String) throws -> Double? {
        guard let value = present(name) else { return nil }
        guard case .number(let number) = value else { throw wrong(name, "a number") }
        return number
    }

    func numbers(_ name: String) throws -> [Int] {
        try array(name).map { value in
            guard let number = value.whole else { throw wrong(name, "a list of whole numbers") }
            return number
        }
    }

    func texts(_ name: String) throws -> [String] {
        try array(name).map { value in
            guard let text = value.string else { throw wrong(name, "a list of texts") }
            return text
        }
    }

    func wrong(_ name: String, _ wanted: String) -> WrongJson {
        WrongJson("\(name) is \(shown(name)); it has to be \(wanted)")
    }

    private func shown(_ name: String) -> String {
        switch present(name) {
        case nil: "absent"
        case .flag(let flag): "\(flag)"
        case .number(let number): whole(number)
        case .text(let text): "\"\(text.prefix(60))\""
        case .array: "a list"
        default: "an object"
        }
    }

    private func whole(_ number: Double) -> String { Int(exactly: number).map(String.init) ?? "\(number)" }
}

/// Reads JSON from UTF-8.
private struct JsonReader {
    private static let deepest = 200
    private let bytes: [UInt8]
    private var at = 0
    private var depth = 0

    init(_ bytes: [UInt8]) { self.bytes = bytes }

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
        space()
        if takes("}") { return .object(fields) }
        repeat {
            space()
            guard at < bytes.count, bytes[at] == UInt8(ascii: "\"") else { throw broken("no name of a field") }
            let key = try text()
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
            return String(decoding: bytes[first..<at - 1], as: UTF8.self)
        }
        var read = Array(bytes[first..<at])
        while at < bytes.count {
            let byte = bytes[at]
            at += 1
            if byte == UInt8(ascii: "\"") { return String(decoding: read, as: UTF8.self) }
            if byte == UInt8(ascii: "\\") { read += try escaped() } else { read.append(byte) }
        }
        throw broken("an open text")
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
            // Half a pair becomes a question mark, as in the reference.
            return Array(String(Unicode.Scalar(unit) ?? "?").utf8)
        default: throw broken("an escape that is none")
        }
    }

    private mutating func unit() throws -> UInt32 {
        guard at + 4 <= bytes.count,
            let unit = UInt32(String(decoding: bytes[at..<at + 4], as: UTF8.self), radix: 16)
        else { throw broken("an escape that is none") }
        at += 4
        return unit
    }
}
