/// Words by their beginnings: which of them a text has at some place. Every word begins at node 0.
protocol Trie: Sendable {
    /// Returns the node that a code point leads to from a node, or -1.
    func child(_ node: Int, _ code: Code) -> Int

    /// Returns the id of the word that ends at a node, or -1.
    func word(_ node: Int) -> Int
}

extension Trie {
    /// Returns the id of a word, or nil.
    func id(_ word: [Code]) -> Int? {
        let node = node(word)
        guard node >= 0, case let id = self.word(node), id >= 0 else { return nil }
        return id
    }

    /// Returns where words go on that begin so, or -1.
    func node(_ beginning: [Code]) -> Int {
        var node = 0
        for code in beginning where node >= 0 { node = child(node, code) }
        return node
    }

    /// Calls `found` with the end and id of each word that `text` has at `first`, the shortest first.
    ///
    /// `start` is what the words begin with, as `node(_:)` returns it; 0 for nothing.
    func each(_ text: Slice, _ first: Int, from start: Int, _ found: (Int, Int) -> Void) {
        var node = start
        var at = first
        while node >= 0, at < text.end {
            node = child(node, text.codes[at])
            at += 1
            if node >= 0, case let id = word(node), id >= 0 { found(at, id) }
        }
    }
}

/// A trie that words are added to.
struct GrowingTrie: Trie {
    // One table of (node, code point) → node; a node's word stands beside it.
    private var keys: [UInt64]
    private var children: [Int32]
    private var ids: [Int32] = [-1]
    private static let free = UInt64.max

    init(capacity: Int) {
        var size = 1 << 12
        while size < 2 * capacity { size *= 2 }
        keys = [UInt64](repeating: Self.free, count: size)
        children = [Int32](repeating: 0, count: size)
    }

    mutating func add(_ word: [Code], _ id: Int) {
        var node = 0
        for code in word { node = childOrNew(node, code) }
        ids[node] = Int32(id)
    }

    /// Returns the id of a word of one character, or nil.
    func id(_ code: Code) -> Int? {
        let node = child(0, code)
        return node >= 0 && ids[node] >= 0 ? Int(ids[node]) : nil
    }

    func word(_ node: Int) -> Int { Int(ids[node]) }

    func child(_ node: Int, _ code: Code) -> Int {
        let key = Self.key(node, code)
        var slot = self.slot(key)
        while keys[slot] != Self.free {
            if keys[slot] == key { return Int(children[slot]) }
            slot = (slot + 1) & (keys.count - 1)
        }
        return -1
    }

    private mutating func childOrNew(_ node: Int, _ code: Code) -> Int {
        let known = child(node, code)
        if known >= 0 { return known }
        if 2 * ids.count >= keys.count { grow() }
        ids.append(-1)
        put(Self.key(node, code), Int32(ids.count - 1))
        return ids.count - 1
    }

    private mutating func put(_ key: UInt64, _ child: Int32) {
        var slot = self.slot(key)
        while keys[slot] != Self.free { slot = (slot + 1) & (keys.count - 1) }
        keys[slot] = key
        children[slot] = child
    }

    private mutating func grow() {
        let before = (keys, children)
        keys = [UInt64](repeating: Self.free, count: 2 * before.0.count)
        children = [Int32](repeating: 0, count: keys.count)
        for slot in before.0.indices where before.0[slot] != Self.free { put(before.0[slot], before.1[slot]) }
    }

    private static func key(_ node: Int, _ code: Code) -> UInt64 { UInt64(node) << 21 | UInt64(code) }

    private func slot(_ key: UInt64) -> Int { Int((key &* 0x9E37_79B9_7F4A_7C15) >> 32) & (keys.count - 1) }
}
