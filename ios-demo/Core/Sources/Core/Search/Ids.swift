/// The rows of passages by their ids, in twelve bytes or so a row: an id is kept as a number made of it, and read from the file where
/// that number is found.
struct Ids {
    private static let least = 64
    private static let room = 4
    /// A row and one; none is 0.
    private var slots: [UInt32]
    private var hashes: [UInt64]
    private var used = 0

    init(rows: Int) {
        var size = Self.least
        while size < rows { size *= 2 }
        slots = [UInt32](repeating: 0, count: size * Self.room)
        hashes = [UInt64](repeating: 0, count: max(rows, Self.least))
    }

    /// Returns the row of an id, or nil.
    ///
    /// - Parameter idOf: reads a row's id.
    func find(_ id: String, _ idOf: (Int) throws -> String) rethrows -> Int? {
        let slot = try slot(id, idOf)
        return slots[slot] == 0 ? nil : Int(slots[slot]) - 1
    }

    /// Takes a row for an id, in place of the one that it had.
    mutating func put(_ id: String, _ row: Int, _ idOf: (Int) throws -> String) rethrows {
        if row >= hashes.count { hashes += [UInt64](repeating: 0, count: max(row + 1 - hashes.count, hashes.count)) }
        if 2 * (used + 1) > slots.count { grow() }
        let slot = try slot(id, idOf)
        hashes[row] = Self.hash(id)
        if slots[slot] == 0 { used += 1 }
        slots[slot] = UInt32(row + 1)
    }

    /// Forgets an id.
    mutating func remove(_ id: String, _ idOf: (Int) throws -> String) rethrows {
        var hole = try slot(id, idOf)
        if slots[hole] == 0 { return }
        used -= 1
        slots[hole] = 0
        // What was put behind it because it was in the way moves up, or it would not be found any more.
        var at = next(hole)
        while slots[at] != 0 {
            let home = home(hashes[Int(slots[at]) - 1])
            let isBetween = hole < at ? (home > hole && home <= at) : (home > hole || home <= at)
            if !isBetween {
                slots[hole] = slots[at]
                slots[at] = 0
                hole = at
            }
            at = next(at)
        }
    }

    private func slot(_ id: String, _ idOf: (Int) throws -> String) rethrows -> Int {
        let hash = Self.hash(id)
        var at = home(hash)
        while slots[at] != 0 {
            let row = Int(slots[at]) - 1
            if hashes[row] == hash, ExactText(try idOf(row)) == ExactText(id) { return at }
            at = next(at)
        }
        return at
    }

    private mutating func grow() {
        let old = slots
        slots = [UInt32](repeating: 0, count: 2 * old.count)
        for one in old where one != 0 {
            var at = home(hashes[Int(one) - 1])
            while slots[at] != 0 { at = next(at) }
            slots[at] = one
        }
    }

    private func home(_ hash: UInt64) -> Int { Int(truncatingIfNeeded: hash ^ hash >> 32) & (slots.count - 1) }

    private func next(_ at: Int) -> Int { (at + 1) & (slots.count - 1) }

    /// Source: FNV-1a of 64 bits, Fowler, Noll and Vo.
    private static func hash(_ id: String) -> UInt64 {
        id.utf8.reduce(0xCBF2_9CE4_8422_2325) { ($0 ^ UInt64($1)) &* 0x100_0000_01B3 }
    }
}
