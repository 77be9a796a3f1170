import Foundation
import XCTest

@testable import Core

/// The flat index: what is kept, what a kill leaves, what is refused, and what is found.
final class FlatIndexTests: XCTestCase {
    private var home = URL(fileURLWithPath: "/")

    override func setUpWithError() throws {
        home = FileManager.default.temporaryDirectory.appendingPathComponent(UUID().uuidString)
        try FileManager.default.createDirectory(at: home, withIntermediateDirectories: true)
    }

    override func tearDownWithError() throws { try FileManager.default.removeItem(at: home) }

    private func space(_ width: Int, isUnitLength: Bool = true, id: String = "b1946ac92492d234", widths: [Int]? = nil) throws -> VectorSpace
    {
        let scales = (0..<width).map { "\((5 + 0.1 * Double($0 % 7)) / Double(width).squareRoot() / 127)" }.joined(separator: ",")
        let json = """
            {"space": "\(id)", "width": \(width), "unit_length": \(isUnitLength), "similarity": "cosine", "widths": \(widths ?? [width]),
            "scales": [\(scales)]}
            """
        return try VectorSpace(try Json.read([UInt8](json.utf8)))
    }

    private func vectors(_ count: Int, _ width: Int, isUnitLength: Bool = true, seed: UInt64 = 7) -> [[Float]] {
        var random = Numbers(state: seed)
        return (0..<count).map { _ in
            let row = (0..<width).map { _ in random.normal() / Double(width).squareRoot() }
            let length = isUnitLength ? row.reduce(0) { $0 + $1 * $1 }.squareRoot() : 1 / (0.5 + random.share())
            return row.map { Float($0 / length) }
        }
    }

    private func passages(_ vectors: [[Float]]) -> [Passage] {
        vectors.enumerated().map { Passage(id: "id \($0)", text: "Text \($0) \"é\u{2028}😀\"\n.", embedding: $1) }
    }

    private func made(_ space: VectorSpace, _ storage: IndexSpec.Storage, width: Int? = nil, name: String? = nil) throws -> FlatIndex {
        let spec = IndexSpec(space, storage, width: width, madeBy: "litert-fp32")
        return try FlatIndex.openOrCreate(home.appendingPathComponent(name ?? storage.rawValue), spec, width: space.width)
    }

    private func found(_ index: FlatIndex, _ query: [Float], _ top: Int = 10) throws -> [String] {
        try index.search(query, top: top).map(\.id)
    }

    private func files(_ folder: URL) throws -> [String: Data] {
        try Dictionary(uniqueKeysWithValues: FlatIndex.files.map { ($0, try Data(contentsOf: folder.appendingPathComponent($0))) })
    }

    private func write(_ files: [String: Data], _ folder: URL) throws {
        for (name, bytes) in files { try bytes.write(to: folder.appendingPathComponent(name)) }
    }

    func testWhatIsAddedIsFoundReplacedAndRemovedAndIsThereWhenItIsOpenedAgain() throws {
        let space = try space(32)
        let all = passages(vectors(50, 32))
        try {
            let index = try made(space, .int8)
            try index.add(Array(all.prefix(20)))
            try index.add(Array(all.dropFirst(20)))
            let first = try XCTUnwrap(try index.search(all[31].embedding, top: 3).first)
            XCTAssertEqual([first.id, first.text], [all[31].id, all[31].text])
            XCTAssertEqual(first.row, 31)
            XCTAssertEqual(first.cosine, 1, accuracy: 0.01)
            XCTAssertTrue(try index.has("id 3", all[3].text))
            XCTAssertFalse(try index.has("id 3", "another") || index.has("id 99", all[3].text))
            try index.add([Passage(id: "id 31", text: "New.", embedding: all[4].embedding)])
            XCTAssertEqual([index.rows, index.count], [51, 50])
            XCTAssertEqual(try found(index, all[4].embedding, 2), ["id 4", "id 31"])
            XCTAssertFalse(try index.search(all[31].embedding, top: 50).map(\.row).contains(31))
            try index.remove(["id 4", "id 4", "nobody"])
            XCTAssertEqual(try found(index, all[4].embedding, 1), ["id 31"])
            let both = [("One.", 5), ("Two.", 6)].map { Passage(id: "a", text: $0.0, embedding: all[$0.1].embedding) }
            try index.add(both)
            XCTAssertTrue(try index.has("a", "Two."))
            XCTAssertEqual(index.count, 50)
            // Two ids that Swift takes for the same text.
            try index.add(["\u{e9}", "e\u{301}"].map { Passage(id: $0, text: $0, embedding: all[7].embedding) })
            XCTAssertEqual(index.count, 52)
            try index.remove(["e\u{301}"])
            XCTAssertTrue(try index.has("\u{e9}", "\u{e9}") && !index.has("\u{e9}", "e\u{301}"))
        }()
        for isWritable in [false, true] {
            let index = try FlatIndex(home.appendingPathComponent("int8"), space, isWritable: isWritable)
            XCTAssertEqual([index.rows, index.count], [54, 51])
            XCTAssertEqual(try index.search(all[4].embedding, top: 1).map(\.text), ["New."])
        }
    }

    func testAKillLosesNothingThatWasCommittedAndLeavesNothingElse() throws {
        let space = try space(16)
        let all = passages(vectors(12, 16))
        let folder = home.appendingPathComponent("int8")
        let rest = all.dropFirst(5) + [Passage(id: "id 0", text: "Other.", embedding: all[1].embedding)]
        var (before, after): ([String: Data], [String: Data]) = ([:], [:])
        try {
            let index = try made(space, .int8)
            try index.add(Array(all.prefix(5)))
            try index.remove(["id 1"])
            before = try files(folder)
            try index.add(Array(rest))
            after = try files(folder)
        }()
        let changed = ["vectors.bin", "passages.jsonl", "offsets.bin", "removed.bin"]
        // Killed while any of them was written, at its first byte, within and behind its last.
        for (number, name) in changed.enumerated() {
            let (old, new) = (try XCTUnwrap(before[name]).count, try XCTUnwrap(after[name]).count)
            XCTAssertLessThan(old, new)
            for size in [old, old + 1, (old + new) / 2, new] {
                try write(before, folder)
                try write(after.filter { changed.prefix(number).contains($0.key) }, folder)
                try write([name: try XCTUnwrap(after[name]).prefix(size), "state.json.new": Data("{\"rows\": 1".utf8)], folder)
                XCTAssertEqual(try found(try FlatIndex(folder, space), all[3].embedding, 1), ["id 3"])
                try {
                    let index = try FlatIndex(folder, space, isWritable: true)
                    XCTAssertEqual([index.rows, index.count], [5, 4])
                    XCTAssertEqual(try files(folder), before)
                    try index.add(Array(rest))
                }()
                XCTAssertEqual(try files(folder), after)
            }
        }
        // Killed before the first commit.
        for name in changed + ["state.json"] { try FileManager.default.removeItem(at: folder.appendingPathComponent(name)) }
        let empty = try FlatIndex(folder, space, isWritable: true)
        XCTAssertEqual(empty.count, 0)
        XCTAssertEqual(try empty.search(all[0].embedding, top: 3), [])
    }

    func testDamageIsRefusedWithASentence() throws {
        let space = try space(16)
        let folder = home.appendingPathComponent("int8")
        try {
            let index = try made(space, .int8)
            try index.add(passages(vectors(5, 16)))
            try index.remove(["id 1", "id 2"])
        }()
        let whole = try files(folder)
        func refused(_ name: String, _ piece: String, _ act: (FlatIndex) throws -> Void = { _ in }, damage: (inout [UInt8]) -> Void) throws
        {
            try write(whole, folder)
            var bytes = [UInt8](try XCTUnwrap(whole[name]))
            damage(&bytes)
            let place = folder.appendingPathComponent(name)
            if bytes.isEmpty { try FileManager.default.removeItem(at: place) } else { try Data(bytes).write(to: place) }
            XCTAssertThrowsError(try act(try FlatIndex(folder, space, isWritable: true)), piece) { error in
                XCTAssertEqual((error as? IndexRefused)?.reason, .damaged, "\(error)")
                XCTAssertTrue("\(error)".contains(piece) && "\(error)".contains("index the texts again"), "\(error): \(piece)")
            }
        }
        func text(_ from: String, _ to: String) -> (inout [UInt8]) -> Void {
            { bytes in
                let text = String(decoding: bytes, as: UTF8.self)
                precondition(text.contains(from))
                bytes = [UInt8](text.replacingOccurrences(of: from, with: to).utf8)
            }
        }
        for name in ["vectors.bin", "passages.jsonl", "offsets.bin", "removed.bin"] {
            try refused(name, "\(name) has") { $0.removeLast() }
            try refused(name, "\(name) has 0 bytes") { $0 = [] }
        }
        try refused("index.json", "it has no index.json") { $0 = [] }
        try refused("state.json", "and no state.json") { $0 = [] }
        try refused("state.json", "state.json: it cannot be read") { $0 = Array($0.prefix(3)) }
        try refused("state.json", "cannot be", damage: text("\"removed\":2", "\"removed\":6"))
        try refused("state.json", "more is no field", damage: text("{", "{\"more\":1,"))
        try refused("index.json", "schema_version is 2", damage: text("\"schema_version\":1", "\"schema_version\":2"))
        try refused("index.json", "storage is bits", damage: text("\"int8\"", "\"bits\""))
        try refused("index.json", "scales for 15 numbers", damage: text("\"width\":16", "\"width\":15"))
        try refused("index.json", "unit_length false", damage: text("\"unit_length\":true", "\"unit_length\":false"))
        try refused("index.json", "similarity is near", damage: text("\"similarity\":\"cosine\"", "\"similarity\":\"near\""))
        try refused("index.json", "similarity is dot, and of unit", damage: text("\"similarity\":\"cosine\"", "\"similarity\":\"dot\""))
        try refused("offsets.bin", "offsets.bin says 0 for row 1") { $0.replaceSubrange(8..<16, with: [UInt8](repeating: 0, count: 8)) }
        try refused("offsets.bin", "for row 4") { $0[34] = 1 }
        try refused("removed.bin", "names row 9 of 5") { $0[0] = 9 }
        try refused("removed.bin", "removes a row twice") { $0[0] = $0[4] }
        try refused("passages.jsonl", "passage of row 0", { _ = try $0.has("id 0", "") }) { $0[0] = UInt8(ascii: "[") }
        try refused("passages.jsonl", "two passages", { _ = try $0.has("id 0", "") }, damage: text("\"id 3\"", "\"id 0\""))
    }

    func testAnIndexOfAnotherSpaceIsRefusedAndSoIsASecondWriter() throws {
        let folder = home.appendingPathComponent("int8")
        func refused(_ reason: IndexRefused.Reason, _ pieces: [String], _ act: () throws -> FlatIndex) {
            XCTAssertThrowsError(try act()) { error in
                XCTAssertEqual((error as? IndexRefused)?.reason, reason)
                for piece in pieces { XCTAssertTrue("\(error)".contains(piece), "\(error)") }
            }
        }
        try {
            let index = try made(try space(8), .int8)
            try index.add(passages(vectors(3, 8)))
            refused(.inUse, ["being written"]) { try FlatIndex(folder, try space(8), isWritable: true) }
            XCTAssertEqual(try FlatIndex(folder, try space(8)).count, 3)
        }()
        let other = try space(8, id: "0123456789abcdef")
        let pieces = ["b1946ac92492d234", "0123456789abcdef", "index the texts again", "pocketbert compatible"]
        refused(.otherSpace, pieces) { try FlatIndex(folder, other) }
        refused(.otherSpace, pieces) { try made(other, .int8) }
        XCTAssertEqual(try FlatIndex(folder, try space(8), isWritable: true).count, 3)
    }

    func testAnEmbeddingThatIsNoneIsRefusedAndNothingIsKeptOfItsBatch() throws {
        let index = try made(try space(8), .int8)
        let good = vectors(1, 8)[0]
        for bad in [[Float](repeating: .nan, count: 8), [Float](repeating: 0, count: 7)] {
            let both = [good, bad].enumerated().map { Passage(id: "\($0)", text: "", embedding: $1) }
            XCTAssertThrowsError(try index.add(both)) { XCTAssertTrue($0 is OutputError) }
            XCTAssertThrowsError(try index.search(bad, top: 1)) { XCTAssertTrue($0 is OutputError) }
        }
        XCTAssertEqual(index.rows, 0)
    }

    func testCompactingDropsWhatWasRemovedAndAKillInItLosesNothing() throws {
        let space = try space(16)
        let all = passages(vectors(40, 16))
        let folder = home.appendingPathComponent("int8")
        try {
            let index = try made(space, .int8)
            try index.add(all)
            try index.retain { (Int($0.dropFirst(3)) ?? 0) % 3 != 0 }
            let before = try found(index, all[7].embedding, 30)
            try index.compact()
            XCTAssertEqual([index.rows, index.count], [26, 26])
            XCTAssertEqual(try files(folder)["vectors.bin"]?.count, 26 * 16)
            XCTAssertEqual(try found(index, all[7].embedding, 30), before)
            XCTAssertThrowsError(try FlatIndex(folder, space, isWritable: true))
            try index.add([all[0]])
            XCTAssertEqual(try found(index, all[0].embedding, 1), ["id 0"])
        }()
        // Killed between the two renames, with half a new one.
        try FileManager.default.moveItem(at: folder, to: home.appendingPathComponent(".int8.before"))
        try FileManager.default.createDirectory(at: home.appendingPathComponent(".int8.new"), withIntermediateDirectories: true)
        XCTAssertTrue(FlatIndex.isThere(folder))
        let index = try FlatIndex(folder, space, isWritable: true)
        XCTAssertEqual(index.count, 27)
        try index.compact()
        XCTAssertEqual(try found(index, all[0].embedding, 1), ["id 0"])
        XCTAssertEqual(index.count, 27)
        XCTAssertEqual(try FileManager.default.contentsOfDirectory(atPath: home.path), ["int8"])
    }

    func testRanksAreThoseOfTheNumbersThatAreKept() throws {
        for (isUnitLength, width) in [(true, 48), (false, 48), (true, 24), (false, 24)] {
            let space = try space(48, isUnitLength: isUnitLength, widths: [48, 24])
            let rows = vectors(300, 48, isUnitLength: isUnitLength)
            for storage in IndexSpec.Storage.allCases {
                let index = try made(space, storage, width: width, name: "\(isUnitLength) \(width) \(storage)")
                try index.add(passages(rows))
                let isOne = isUnitLength && width == 48
                for query in vectors(20, 48, isUnitLength: isUnitLength, seed: 9) {
                    let wanted = rows.map { cosine(Array(query.prefix(width)), kept($0, space, storage, width), isOne: isOne) }
                    let found = try index.search(query, top: 300)
                    for one in found { XCTAssertEqual(Double(one.cosine), wanted[one.row], accuracy: 2e-5) }
                    XCTAssertTrue(zip(found, found.dropFirst()).allSatisfy { wanted[$0.row] > wanted[$1.row] - 4e-5 })
                    XCTAssertEqual(Set(found.map(\.row)).count, 300)
                }
            }
        }
        // The floats of a whole index are ranked as a set of sentences is.
        let rows = vectors(100, 48, seed: 3)
        let index = try made(try space(48), .float32)
        try index.add(passages(rows))
        XCTAssertEqual(try found(index, rows[5]), Outputs.nearest(rows[5], among: rows, top: 10).map { "id \($0.place)" })
    }

    /// Returns what is kept of a vector, computed otherwise than the index does.
    private func kept(_ row: [Float], _ space: VectorSpace, _ storage: IndexSpec.Storage, _ width: Int) -> [Double] {
        (0..<width).map { at in
            if storage == .float32 { return Double(row[at]) }
            return min(max((Double(row[at]) / space.scales[at]).rounded(), -127), 127) * space.scales[at]
        }
    }

    /// - Parameter isOne: whether a row counts as one of unit length, whatever rounding makes of it.
    private func cosine(_ query: [Float], _ row: [Double], isOne: Bool) -> Double {
        let length = isOne ? 1 : row.reduce(0) { $0 + $1 * $1 }.squareRoot()
        let dot = zip(query, row).reduce(0) { $0 + Double($1.0) * $1.1 }
        return dot / (length * query.reduce(0) { $0 + Double($1) * Double($1) }.squareRoot())
    }

    func testEqualRowsComeInTheOrderInWhichTheyWereAdded() throws {
        let one = vectors(1, 8)[0]
        for storage in IndexSpec.Storage.allCases {
            let index = try made(try space(8), storage)
            try index.add((0..<7).map { Passage(id: "\($0)", text: "Text.", embedding: one) })
            XCTAssertEqual(try found(index, one, 4), ["0", "1", "2", "3"])
            XCTAssertEqual(try found(index, one, 0), [])
            let zero = try index.search([Float](repeating: 0, count: 8), top: 2)
            XCTAssertEqual(zero.map(\.id), ["0", "1"])
            XCTAssertEqual(zero.map(\.cosine), [0, 0])
        }
    }

    func testTheSumOfTheLargestCodesStaysWithin32Bits() throws {
        for width in [384, 1024, 4096] {
            let spec = IndexSpec(
                space: "b1946ac92492d234", width: width, storage: .int8, scales: [Double](repeating: 0.01, count: width),
                isUnitLength: true, madeBy: "litert-fp32")
            let index = try FlatIndex.openOrCreate(home.appendingPathComponent("\(width)"), spec, width: width)
            try index.add([Float(-2), 2].map { Passage(id: "\($0)", text: "", embedding: [Float](repeating: $0, count: width)) })
            let codes = QueryCodes([Float](repeating: 2, count: width), spec.scales ?? [])
            let largest = codes.codes.reduce(0) { $0 + abs(Int($1)) * 127 }
            XCTAssertLessThanOrEqual(largest, Int(Int32.max))
            if width >= 1024 { XCTAssertGreaterThan(Double(largest), Double(Int32.max) * 0.999) }
            XCTAssertEqual(try found(index, [Float](repeating: 2, count: width)), ["2.0", "-2.0"])
            XCTAssertEqual(try found(index, [Float](repeating: -2, count: width)), ["-2.0", "2.0"])
        }
    }

    func testAnInt8IndexNeedsAQuarterOfTheMemory() throws {
        for width in [384, 192] {
            let held = try [IndexSpec.Storage.int8, .float32].map { storage in
                let index = try made(try space(384, widths: [384, 192]), storage, width: width, name: "\(storage) \(width)")
                try index.add(passages(vectors(500, 384)))
                return try index.heldBytes()
            }
            XCTAssertGreaterThanOrEqual(Double(held[1]), 3.9 * Double(held[0]))
            print("memory of 500 rows of \(width): \(held[1]) bytes as float32, \(held[0]) as int8")
        }
    }

    func testIdsAreFoundWhateverWasPutAndRemovedBefore() {
        var names: [String] = []
        var (ids, wanted): (Ids, [String: Int]) = (Ids(rows: 0), [:])
        var random = Numbers(state: 5)
        for _ in 0..<20_000 {
            let id = "\(random.next() % 900)"
            if random.next() % 3 == 0 {
                ids.remove(id) { names[$0] }
                wanted[id] = nil
            } else {
                names.append(id)
                ids.put(id, names.count - 1) { names[$0] }
                wanted[id] = names.count - 1
            }
            let asked = "\(random.next() % 900)"
            XCTAssertEqual(ids.find(asked) { names[$0] }, wanted[asked])
        }
        for id in 0..<900 { XCTAssertEqual(ids.find("\(id)") { names[$0] }, wanted["\(id)"]) }
    }
}

/// Numbers that are the same in every run. Source: SplitMix64, Steele, Lea and Flood 2014.
struct Numbers: RandomNumberGenerator {
    var state: UInt64

    mutating func next() -> UInt64 {
        state &+= 0x9E37_79B9_7F4A_7C15
        var mixed = state
        mixed = (mixed ^ mixed >> 30) &* 0xBF58_476D_1CE4_E5B9
        mixed = (mixed ^ mixed >> 27) &* 0x94D0_49BB_1331_11EB
        return mixed ^ mixed >> 31
    }

    mutating func share() -> Double { Double(next() >> 11) / Double(1 << 53) }

    /// Nearly normally distributed: the sum of twelve.
    mutating func normal() -> Double { (0..<12).reduce(-6) { sum, _ in sum + share() } }
}
