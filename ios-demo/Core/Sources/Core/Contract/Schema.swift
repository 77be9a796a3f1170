import Foundation

/// A JSON Schema that the pipeline generated from its own models (draft 2020-12, as far as those need it).
///
/// The same files lie beside the pipeline's documents: what it writes is what is read here, field by field.
struct Schema: Sendable {
    private static let known: Set<String> = [
        "$schema", "$defs", "description", "type", "properties", "required", "additionalProperties", "items", "anyOf", "const", "enum",
        "minimum", "maximum", "exclusiveMinimum", "pattern",
    ]
    private let root: Json

    /// Reads the schema of a file, such as `models` for `models.json`.
    static func of(_ name: String) -> Schema {
        guard let place = Bundle.module.url(forResource: "\(name).schema", withExtension: "json", subdirectory: "schemas"),
            let data = try? Data(contentsOf: place), let root = try? Json.readStrict([UInt8](data))
        else { preconditionFailure("schemas/\(name).schema.json is not in this build") }
        return Schema(root: root)
    }

    /// Reads a document and checks it. Throws `WrongJson` where it is none that the schema allows; the message names the field.
    func read(_ bytes: [UInt8]) throws -> Json {
        let document = try Json.readStrict(bytes)
        // First of all: of another version everything else may be different too.
        let known = try properties(root).child("schema_version")?.number("const")
        let version = try document.number("schema_version")
        if let known, version != known {
            throw WrongJson("its schema_version is \(version), and this version reads \(known); update the app, or ship again")
        }
        try check(document)
        return document
    }

    /// Checks a document. Throws as `read` does.
    func check(_ document: Json) throws { try check(root, document, "") }

    private func check(_ given: Json, _ value: Json, _ place: String) throws {
        let schema = resolved(given)
        if case .object(let fields) = schema, let other = fields.first(where: { !Self.known.contains($0.key) }) {
            preconditionFailure("the schema has \(other.key), which is not known here")
        }
        if case .array(let options)? = schema.present("anyOf") { return try checkAny(options.map(resolved), value, place) }
        if !hasType(schema, value) { throw wrong(value, place, wanted(schema)) }
        if let one = schema.present("const"), !same(value, one) { throw wrong(value, place, one.written()) }
        if case .array(let all)? = schema.present("enum"), !all.contains(where: { same(value, $0) }) {
            throw wrong(value, place, all.map { $0.written() }.joined(separator: " or "))
        }
        if let pattern = schema.present("pattern")?.string, let text = value.string, !Self.isWhole(text, pattern) {
            throw wrong(value, place, "a text like \(pattern)")
        }
        try checkBounds(schema, value, place)
        if case .object(let fields) = value { try checkObject(schema, value, fields, place) }
        if case .array(let values) = value, let items = schema.present("items") {
            for (number, one) in values.enumerated() { try check(items, one, place.isEmpty ? "\(number)" : "\(place).\(number)") }
        }
    }

    /// A value of the type of one option is judged by that option, so that the message names the field inside.
    private func checkAny(_ options: [Json], _ value: Json, _ place: String) throws {
        guard let option = options.first(where: { hasType($0, value) }) else {
            throw wrong(value, place, options.map(wanted).joined(separator: " or "))
        }
        try check(option, value, place)
    }

    private func checkObject(_ schema: Json, _ value: Json, _ fields: [(key: String, value: Json)], _ place: String) throws {
        let properties = properties(schema)
        let before = place.isEmpty ? "" : "\(place)."
        if case .array(let required)? = schema.present("required") {
            for name in required.compactMap(\.string) where value.field(name) == nil {
                let wanted = wanted(resolved(properties.present(name) ?? .object([])))
                throw WrongJson("\(before)\(name) is absent; it has to be \(wanted)")
            }
        }
        let others = schema.present("additionalProperties")
        for (name, field) in fields {
            var own = properties.present(name)
            if own == nil, case .object? = others { own = others }
            if let own {
                try check(own, field, before + name)
            } else if others != nil {
                throw WrongJson("\(before)\(name.prefix(60)) is a field that this version does not know")
            }
        }
    }

    private static func isWhole(_ text: String, _ pattern: String) -> Bool {
        let all = NSRange(text.startIndex..., in: text)
        return (try? NSRegularExpression(pattern: pattern))?.firstMatch(in: text, range: all)?.range == all
    }

    private func checkBounds(_ schema: Json, _ value: Json, _ place: String) throws {
        guard let number = value.real else { return }
        if let bound = bound(schema, "minimum"), number < bound.value { throw wrong(value, place, "\(bound.shown) or more") }
        if let bound = bound(schema, "maximum"), number > bound.value { throw wrong(value, place, "\(bound.shown) or less") }
        if let bound = bound(schema, "exclusiveMinimum"), number <= bound.value { throw wrong(value, place, "more than \(bound.shown)") }
    }

    private func bound(_ schema: Json, _ name: String) -> (value: Double, shown: String)? {
        guard let bound = schema.present(name), let value = bound.real else { return nil }
        return (value, bound.written())
    }

    private func properties(_ schema: Json) -> Json { schema.present("properties") ?? .object([]) }

    private func resolved(_ schema: Json) -> Json {
        guard let name = schema.present("$ref")?.string else { return schema }
        guard let found = root.present("$defs")?.present(String(name.dropFirst("#/$defs/".count))) else {
            preconditionFailure("the schema has no \(name)")
        }
        return found
    }

    private func same(_ one: Json, _ other: Json) -> Bool {
        switch (one, other) {
        case (.text(let one), .text(let other)): ExactText(one) == ExactText(other)
        case (.literal(let one), .literal(let other)): one == other
        default: false
        }
    }

    private func hasType(_ schema: Json, _ value: Json) -> Bool {
        switch (schema.present("type")?.string, value) {
        case ("object", .object), ("array", .array), ("null", .null), ("string", .text), ("boolean", .flag): true
        case ("integer", .literal(let literal)): literal.utf8.allSatisfy { (0x30...0x39).contains($0) || $0 == UInt8(ascii: "-") }
        case ("number", .literal), ("number", .number): value.real?.isFinite ?? false
        default: false
        }
    }

    private func wanted(_ schema: Json) -> String {
        if case .array(let options)? = schema.present("anyOf") {
            return options.map { wanted(resolved($0)) }.joined(separator: " or ")
        }
        return switch schema.present("type")?.string {
        case "object": "an object"
        case "array": "a list"
        case "null": "null"
        case "string": "a text"
        case "boolean": "true or false"
        case "integer": "a whole number"
        default: "a number"
        }
    }

    private func wrong(_ value: Json, _ place: String, _ wanted: String) -> WrongJson {
        WrongJson("\(place.isEmpty ? "the file" : place) is \(value.shown); it has to be \(wanted)")
    }
}
