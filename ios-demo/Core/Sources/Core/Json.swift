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
indirect enum Json: Sendable {
    case null
    case flag(Bool)
    case number(Double)
    /// A number as it stands in a file that is read strictly, where 1 and 1.0 are two things; and a whole one to be written.
    case literal(String)
    case text(String)
    case array([Json])
    case object([(key: String, value: Json)])

    /// Reads a whole file. Throws `WrongJson` where it is no object.
    static func read(_ bytes: [UInt8]) throws -> Json {
        let file = try readAny(bytes)
        guard case .object = file else { throw WrongJson("it holds no object") }
        return file
    }

    /// Reads a whole file as `read` does, and refuses what is no JSON to the letter: bare words, a key twice, broken UTF-8.
    static func readStrict(_ bytes: [UInt8]) throws -> Json {
        if !isUtf8(bytes) { throw WrongJson("it cannot be read: it is not UTF-8") }
        var reader = JsonReader(bytes, strict: true)
        let file = try reader.file()
        guard case .object = file else { throw WrongJson("it holds no object") }
        return file
    }

    /// Reads a value of any kind.
    static func readAny(_ bytes: [UInt8]) throws -> Json {
        var reader = JsonReader(bytes, strict: false)
        return try reader.file()
    }

    private static func isUtf8(_ bytes: [UInt8]) -> Bool {
        var codec = UTF8()
        var rest = bytes.makeIterator()
        while true {
            switch codec.decode(&rest) {
            case .scalarValue: continue
            case .emptyInput: return true
            case .error: return false
            }
        }
    }

    /// Returns a field that is there, be it null.
    func field(_ name: String) -> Json? {
        guard case .object(let fields) = self else { return nil }
        return fields.last { $0.key == name }?.value
    }

    /// Returns a field that is there and not null.
    func present(_ name: String) -> Json? {
        guard let found = field(name) else { return nil }
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

    func long(_ name: String) throws -> Int64 {
        guard let number = present(name)?.long else { throw wrong(name, "a whole number") }
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

    /// The value as a whole number of 32 bits, which is what runtimes take, or nil.
    var whole: Int? { long.flatMap { Int32(exactly: $0) }.map(Int.init) }

    /// The value as a whole number, or nil.
    var long: Int64? {
        switch self {
        case .number(let number): Int64(exactly: number)
        case .literal(let literal): Int64(literal)
        default: nil
        }
    }

    /// The value as a number, or nil.
    var real: Double? {
        switch self {
        case .number(let number): number
        case .literal(let literal): Double(literal)
        default: nil
        }
    }

    /// The value as a text, or nil.
    var string: String? {
        if case .text(let text) = self { text } else { nil }
    }

    func doubleOrNil(_ name: String) throws -> Double? {
        guard let value = present(name) else { return nil }
        guard let number = value.real else { throw wrong(name, "a number") }
        return number
    }

    func numbers(_ name: String) throws -> [Int] {
        try array(name).map { value in
            guard let number = value.whole else { throw wrong(name, "a list of whole numbers") }
            return number
        }
    }

    func doubles(_ name: String) throws -> [Double] {
        try array(name).map { value in
            guard let number = value.real else { throw wrong(name, "a list of numbers") }
            return number
        }
    }

    func texts(_ name: String) throws -> [String] {
        try array(name).map { value in
            guard let text = value.string else { throw wrong(name, "a list of texts") }
            return text
        }
    }

    /// Returns an object of texts; of two fields with one name the last.
    func textsByName(_ name: String) throws -> [String: String] {
        guard case .object(let fields)? = try child(name) else { throw wrong(name, "an object") }
        return try Dictionary(
            fields.map { field in
                guard let text = field.value.string else { throw wrong(name, "an object of texts") }
                return (field.key, text)
            }
        ) { $1 }
    }

    func wrong(_ name: String, _ wanted: String) -> WrongJson {
        WrongJson("\(name) is \(shown(name)); it has to be \(wanted)")
    }

    private func shown(_ name: String) -> String {
        guard let value = field(name) else { return "absent" }
        if case .number(let number) = value, let whole = Int(exactly: number) { return "\(whole)" }
        return value.shown
    }
}

extension Json {
    private static let mostShown = 60

    /// The beginning of the value as JSON, for messages.
    var shown: String { String(written(most: Self.mostShown).prefix(Self.mostShown)) }

    /// Returns the value as JSON on one line, or its beginning where only so many bytes are asked for.
    func written(most: Int = .max) -> String {
        var json = ""
        write(to: &json, most)
        return json
    }

    private func write(to json: inout String, _ most: Int) {
        if json.utf8.count >= most { return }
        switch self {
        case .null: json += "null"
        case .flag(let flag): json += flag ? "true" : "false"
        // JSON has no such numbers; as a text they can be read in messages, and no schema takes them.
        case .number(let number) where !number.isFinite: json += "\"\(number)\""
        case .number(let number): json += "\(number)"
        case .literal(let literal): json += literal
        case .text(let text): Self.write(text, to: &json)
        case .array(let values):
            json += "["
            for (place, value) in values.enumerated() where json.utf8.count < most {
                if place > 0 { json += "," }
                value.write(to: &json, most)
            }
            json += "]"
        case .object(let fields):
            json += "{"
            for (place, field) in fields.enumerated() where json.utf8.count < most {
                if place > 0 { json += "," }
                Self.write(field.key, to: &json)
                json += ":"
                field.value.write(to: &json, most)
            }
            json += "}"
        }
    }

    private static func write(_ text: String, to json: inout String) {
        json += "\""
        for scalar in text.unicodeScalars {
            switch scalar {
            case "\"", "\\": json += "\\\(scalar)"
            case "\n": json += "\\n"
            case "\r": json += "\\r"
            case "\t": json += "\\t"
            case "\u{8}": json += "\\b"
            case "\u{C}": json += "\\f"
            case "\0"..<" ":
                let digits = String(scalar.value, radix: 16)
                json += "\\u" + String(repeating: "0", count: 4 - digits.count) + digits
            default: json.unicodeScalars.append(scalar)
            }
        }
        json += "\""
    }
}

/// A text as a key, byte by byte: to Swift é as one code point and as two are the same, and so are K and the Kelvin sign.
struct ExactText: Hashable, Comparable {
    let text: String

    init(_ text: String) { self.text = text }

    static func == (one: ExactText, other: ExactText) -> Bool { one.text.utf8.elementsEqual(other.text.utf8) }

    static func < (one: ExactText, other: ExactText) -> Bool { one.text.utf8.lexicographicallyPrecedes(other.text.utf8) }

    func hash(into hasher: inout Hasher) {
        var text = text
        text.withUTF8 { hasher.combine(bytes: UnsafeRawBufferPointer($0)) }
    }
}
