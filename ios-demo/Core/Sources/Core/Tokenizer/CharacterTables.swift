import Foundation

/// A code point.
typealias Code = UInt32

/// A set of code points, kept as ranges.
struct CharacterSet: Sendable {
    private static let lowEnd: Code = 0x180
    private let firsts: [Code]
    private let lasts: [Code]
    private let low: [Bool]

    init(firsts: [Code], lasts: [Code]) {
        self.firsts = firsts
        self.lasts = lasts
        low = (0..<Self.lowEnd).map { Self.search($0, firsts, lasts) }
    }

    /// Makes the set of the code points for which `has` is true. Looks at each of them, so it is for few sets.
    init(of has: (Code) -> Bool) {
        var firsts: [Code] = []
        var lasts: [Code] = []
        for code in Code(0)..<0x110000 where has(code) {
            if let last = lasts.last, last + 1 == code {
                lasts[lasts.count - 1] = code
            } else {
                firsts.append(code)
                lasts.append(code)
            }
        }
        self.init(firsts: firsts, lasts: lasts)
    }

    func contains(_ code: Code) -> Bool {
        code < Self.lowEnd ? low[Int(code)] : Self.search(code, firsts, lasts)
    }

    private static func search(_ code: Code, _ firsts: [Code], _ lasts: [Code]) -> Bool {
        var low = 0
        var high = firsts.count
        while low < high {
            let middle = (low + high) / 2
            if firsts[middle] <= code { low = middle + 1 } else { high = middle }
        }
        return low > 0 && code <= lasts[low - 1]
    }
}

/// What characters become; those that are not in it stay.
struct CharacterMap: Sendable {
    /// All characters that become something else.
    let entries: [Code: [Code]]
    private let lowest: Code

    init(_ becomes: [Code: [Code]]) {
        entries = becomes
        lowest = becomes.keys.min() ?? .max
    }

    /// What a character becomes, or nil where it stays.
    subscript(code: Code) -> [Code]? { code < lowest ? nil : entries[code] }
}

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
            guard let line = lines["set \(name)"] else { return nil }
            let set = readSet(line)
            kept.sets[name] = set
            return set
        }
    }

    /// Returns the map of a name; it is read when it is asked for first.
    static func map(_ name: String) -> CharacterMap {
        cache.withLock { kept in
            if let map = kept.maps[name] { return map }
            guard let line = lines["map \(name)"] else { preconditionFailure("characters.txt has no map \(name)") }
            let map = readMap(line)
            kept.maps[name] = map
            return map
        }
    }

    /// Returns the general categories whose names begin so, as one set: `L`, `Lu`, `P`.
    static func category(_ name: String) -> CharacterSet? {
        if let set = find("category_\(name)") { return set }
        let unassigned = name == "C" || name == "Cn"
        let parts = categories(beginning: name).map(set)
        if parts.isEmpty && !unassigned { return nil }
        let whole: CharacterSet
        if unassigned {
            let all = categories(beginning: "").map(set)
            let others = name == "C" ? parts : []
            whole = CharacterSet { code in
                !(0xD800...0xDFFF).contains(code)
                    && (others.contains { $0.contains(code) } || !all.contains { $0.contains(code) })
            }
        } else {
            whole = CharacterSet { code in parts.contains { $0.contains(code) } }
        }
        return cache.withLock { kept in
            kept.sets["category_\(name)"] = whole
            return whole
        }
    }

    private static func categories(beginning: String) -> [String] {
        lines.keys.filter { $0.hasPrefix("set category_\(beginning)") }.map { String($0.dropFirst(4)) }
    }

    private struct Kept {
        var sets: [String: CharacterSet] = [:]
        var maps: [String: CharacterMap] = [:]
    }

    private static let cache = Locked(Kept())

    private static let lines: [String: ArraySlice<UInt8>] = {
        guard let place = Bundle.module.url(forResource: "characters", withExtension: "txt"),
            let data = try? Data(contentsOf: place)
        else { preconditionFailure("characters.txt is missing from the package") }
        var kept: [String: ArraySlice<UInt8>] = [:]
        for line in [UInt8](data).split(separator: UInt8(ascii: "\n")) where line.first != UInt8(ascii: "#") {
            let spaces = line.indices.lazy.filter { line[$0] == UInt8(ascii: " ") }.prefix(2)
            let name = spaces.dropFirst().first ?? line.endIndex
            kept[String(decoding: line[line.startIndex..<name], as: UTF8.self)] = line[min(name + 1, line.endIndex)...]
        }
        return kept
    }()

    private static func readSet(_ line: ArraySlice<UInt8>) -> CharacterSet {
        var numbers = Numbers(line)
        var firsts: [Code] = []
        var lasts: [Code] = []
        var before: Code = 0
        while !numbers.ended {
            let first = before + numbers.next()
            before = numbers.takes("-") ? first + numbers.next() : first
            _ = numbers.takes(" ")
            firsts.append(first)
            lasts.append(before)
        }
        return CharacterSet(firsts: firsts, lasts: lasts)
    }

    private static func readMap(_ line: ArraySlice<UInt8>) -> CharacterMap {
        var numbers = Numbers(line)
        var becomes: [Code: [Code]] = [:]
        var from: Code = 0
        while !numbers.ended {
            from += numbers.next()
            _ = numbers.takes("=")
            var to: [Code] = []
            repeat {
                if numbers.atNumber { to.append(numbers.next()) }
            } while numbers.takes(".")
            _ = numbers.takes(" ")
            becomes[from] = to
        }
        return CharacterMap(becomes)
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
