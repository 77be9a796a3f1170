import Foundation

/// What the reference tokenizer knows of characters, as `characters.txt` has it.
///
/// A phone's own Unicode tables are of another version, so none of them is asked.
enum CharacterTables {
    /// Returns the set of a name; it is read when it is asked for first.
    static func set(_ name: String) -> CharacterSet {
        guard let set = find(name) else { preconditionFailure("characters.txt has no set \(name)") }
        return set
    }

    /// Returns the set of a name, or nil where there is none.
    static func find(_ name: String) -> CharacterSet? {
        cache.withLock { kept in
            if let set = kept.sets[name] { return set }
            guard let line = lines[name] else { return nil }
            let set = readSet(line)
            kept.sets[name] = set
            return set
        }
    }

    /// Returns the map of a name; it is read when it is asked for first.
    static func map(_ name: String) -> CharacterMap {
        cache.withLock { kept in
            if let map = kept.maps[name] { return map }
            guard let line = lines[name] else { preconditionFailure("characters.txt has no map \(name)") }
            let map = readMap(line)
            kept.maps[name] = map
            return map
        }
    }

    /// Returns the general categories whose names begin so, as one set: `L`, `Lu`, `P`.
    static func category(_ name: String) -> CharacterSet? {
        if let set = find("category_\(name)") { return set }
        let parts = categories(name)
        let whole: CharacterSet
        switch name {
        case "Cn": whole = unassigned()
        case "C": whole = CharacterSet.union(parts + [unassigned()])
        default:
            if parts.isEmpty { return nil }
            whole = CharacterSet.union(parts)
        }
        cache.withLock { kept in kept.sets["category_\(name)"] = whole }
        return whole
    }

    private static func categories(_ beginning: String) -> [CharacterSet] {
        lines.keys.filter { $0.hasPrefix("category_\(beginning)") }.map(set)
    }

    private static func unassigned() -> CharacterSet {
        CharacterSet.union(categories("") + [CharacterSet([0xD800...0xDFFF])]).inverted()
    }

    private struct Kept {
        var sets: [String: CharacterSet] = [:]
        var maps: [String: CharacterMap] = [:]
    }

    private static let cache = Locked(Kept())

    /// The numbers of each line by its name. They are read when they are asked for: few tokenizers need many.
    private static let lines: [String: ArraySlice<UInt8>] = {
        guard let place = Bundle.module.url(forResource: "characters", withExtension: "txt"),
            let data = try? Data(contentsOf: place)
        else { preconditionFailure("characters.txt is missing from the package") }
        var found: [String: ArraySlice<UInt8>] = [:]
        for line in [UInt8](data).split(separator: UInt8(ascii: "\n")) where line.first != UInt8(ascii: "#") {
            // `set` or `map`, which the name tells as well.
            guard let kind = line.firstIndex(of: UInt8(ascii: " ")) else { continue }
            let name = line[(kind + 1)...].prefix { $0 != UInt8(ascii: " ") }
            found[String(decoding: name, as: UTF8.self)] = line[name.endIndex...].dropFirst()
        }
        return found
    }()

    private static func readSet(_ line: ArraySlice<UInt8>) -> CharacterSet {
        var numbers = Numbers(line)
        var ranges: [ClosedRange<Code>] = []
        var before: Code = 0
        while !numbers.ended {
            let first = before + numbers.next()
            before = numbers.takes("-") ? first + numbers.next() : first
            _ = numbers.takes(" ")
            ranges.append(first...before)
        }
        return CharacterSet(ranges)
    }

    private static func readMap(_ line: ArraySlice<UInt8>) -> CharacterMap {
        var numbers = Numbers(line)
        var keys: [Code] = []
        var becomes: [[Code]] = []
        var from: Code = 0
        while !numbers.ended {
            from += numbers.next()
            _ = numbers.takes("=")
            var to: [Code] = []
            repeat {
                if numbers.atNumber { to.append(numbers.next()) }
            } while numbers.takes(".")
            _ = numbers.takes(" ")
            keys.append(from)
            becomes.append(to)
        }
        return CharacterMap(keys, becomes)
    }

    /// Reads hexadecimal numbers one after the other.
    private struct Numbers {
        private let line: ArraySlice<UInt8>
        private var at: Int

        init(_ line: ArraySlice<UInt8>) {
            self.line = line
            at = line.startIndex
        }

        var ended: Bool { at >= line.endIndex }
        var atNumber: Bool { at < line.endIndex && digit(line[at]) != nil }

        mutating func next() -> Code {
            var value: Code = 0
            while at < line.endIndex, let digit = digit(line[at]) {
                value = value * 16 + digit
                at += 1
            }
            return value
        }

        mutating func takes(_ sign: Unicode.Scalar) -> Bool {
            let there = at < line.endIndex && line[at] == UInt8(ascii: sign)
            if there { at += 1 }
            return there
        }

        private func digit(_ byte: UInt8) -> Code? {
            switch byte {
            case 0x30...0x39: Code(byte - 0x30)
            case 0x61...0x66: Code(byte - 0x61 + 10)
            default: nil
            }
        }
    }
}

/// A value that one thread changes at a time.
final class Locked<Value>: @unchecked Sendable {
    private var value: Value
    private let lock = NSLock()

    init(_ value: Value) { self.value = value }

    func withLock<Result>(_ body: (inout Value) -> Result) -> Result {
        lock.lock()
        defer { lock.unlock() }
        return body(&value)
    }
}
