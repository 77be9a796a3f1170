/// What a `tokenizer.bin` holds: a large `tokenizer.json` that opens in milliseconds. `pipeline/text/binary.py` writes it.
struct StoredVocabulary: Sendable {
    private static let magic = Array("PBTOKENS".utf8)
    private static let version: UInt32 = 1
    private static let head = 32
    /// `tokenizer.json` without its vocabulary.
    let json: [UInt8]
    let words: StoredTrie
    /// The score of each id, where the model has scores.
    let scores: [Double]

    /// Reads the file. Throws `UnsupportedTokenizer` where it is broken or of another version.
    init(_ bytes: [UInt8]) throws {
        if bytes.count < Self.head || !bytes.starts(with: Self.magic) { throw Self.broken("it is no such file") }
        let head = Self.numbers(bytes, Self.magic.count, 4, UInt32.init(littleEndian:))
        if head[0] != Self.version {
            throw Self.broken("it is of version \(head[0]), and this app reads version \(Self.version); ship the model again")
        }
        let (text, nodes, count) = (Int(head[1]), Int(head[2]), Int(head[3]))
        let size = Self.head + text + 8 * count + 4 * (3 * nodes + 1)
        if nodes < 1 || size != bytes.count { throw Self.broken("it has \(bytes.count) bytes, and its head says \(size)") }
        json = Array(bytes[Self.head..<Self.head + text])
        var place = Self.head + text
        scores = Self.numbers(bytes, place, count) { Double(bitPattern: UInt64(littleEndian: $0)) }
        place += 8 * count
        let codes = Self.numbers(bytes, place, nodes, Code.init(littleEndian:))
        let children = Self.numbers(bytes, place + 4 * nodes, nodes + 1, UInt32.init(littleEndian:))
        let ids = Self.numbers(bytes, place + 4 * (2 * nodes + 1), nodes, Int32.init(littleEndian:))
        guard let words = StoredTrie(codes, children, ids) else { throw Self.broken("its tokens are no tree") }
        // A score is looked up by id, and BERT's WordPiece has none.
        if count > 0, ids.contains(where: { $0 >= count }) { throw Self.broken("a token has no score") }
        self.words = words
    }

    /// Reads numbers that lie side by side, wherever they begin.
    private static func numbers<Stored: BitwiseCopyable, Number>(
        _ bytes: [UInt8], _ place: Int, _ count: Int, _ number: (Stored) -> Number
    ) -> [Number] {
        bytes.withUnsafeBytes { raw in
            (0..<count).map { number(raw.loadUnaligned(fromByteOffset: place + $0 * MemoryLayout<Stored>.size, as: Stored.self)) }
        }
    }

    private static func broken(_ why: String) -> UnsupportedTokenizer { UnsupportedTokenizer("tokenizer.bin: \(why)") }
}

/// A trie as it lies in a file.
struct StoredTrie: Trie {
    // The code point that leads to each node; those of one parent stand together and go up.
    private let codes: [Code]
    // The number of each node's first child; they end where the next node's begin.
    private let children: [UInt32]
    // The id of the word that ends at each node, or -1.
    private let ids: [Int32]

    /// Takes the three lists; nil where a node has no parent, or several, or one behind it, or an id is none.
    init?(_ codes: [Code], _ children: [UInt32], _ ids: [Int32]) {
        if children[0] != 1 || children[ids.count] != ids.count { return nil }
        for node in ids.indices where children[node] <= node || children[node + 1] < children[node] || ids[node] < -1 { return nil }
        self.codes = codes
        self.children = children
        self.ids = ids
    }

    func word(_ node: Int) -> Int { Int(ids[node]) }

    func child(_ node: Int, _ code: Code) -> Int {
        var first = Int(children[node])
        var end = Int(children[node + 1])
        while first < end {
            let middle = (first + end) / 2
            if codes[middle] == code { return middle }
            if codes[middle] < code { first = middle + 1 } else { end = middle }
        }
        return -1
    }
}
