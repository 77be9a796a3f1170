import Foundation

/// A `tokenizer.json` is broken, or uses something that is not supported here.
public struct UnsupportedTokenizer: Error, CustomStringConvertible, Sendable {
    /// What is wrong, in one sentence.
    public let description: String

    init(_ description: String) { self.description = description }
}

/// One row of tokens.
public struct Encoding: Sendable, Equatable {
    /// The token ids, special ones included.
    public internal(set) var ids: [Int] = []
    /// The segment of each token: 0 for the first text, 1 for the second where the model tells them apart.
    public internal(set) var types: [Int] = []
    /// Which text each token is of (0 or 1); -1 for special tokens.
    public internal(set) var texts: [Int] = []
    /// Where each token begins in its text, in UTF-16 code units; 0 for special tokens. Spans leave out spaces around a
    /// token, and include the accents that belong to its last character.
    public internal(set) var from: [Int] = []
    /// Where it ends.
    public internal(set) var to: [Int] = []
    /// How many tokens at its beginning are attended to and not pooled: a prompt's, where the model leaves them out.
    public internal(set) var unpooled = 0

    /// The number of tokens.
    public var count: Int { ids.count }

    /// Returns the same row, of which so many tokens at the beginning are not pooled.
    func unpooling(_ tokens: Int) -> Encoding {
        var row = self
        row.unpooled = min(tokens, count)
        return row
    }

    fileprivate init(capacity: Int) {
        ids.reserveCapacity(capacity)
        types.reserveCapacity(capacity)
        texts.reserveCapacity(capacity)
        from.reserveCapacity(capacity)
        to.reserveCapacity(capacity)
    }
}

/// A row that cannot be made of these texts.
public struct EncodingError: Error, CustomStringConvertible, Sendable {
    /// What is wrong, in one sentence.
    public let description: String
}

/// The tokenizer of a `tokenizer.json`: WordPiece, SentencePiece unigram or byte-level BPE, with its normaliser.
///
/// Gives the ids of the reference library (Hugging Face `tokenizers`), on every version of iOS. Safe to use from several
/// threads at once.
public struct Tokenizer: Sendable {
    private let added: AddedTokens
    private let preTokenizer: PreTokenizer?
    private let model: any TokenModel
    private let template: Template
    private let addedIds: [(codes: [Code], id: Int)]
    private let spaceMark: Int?
    private let spaces = CharacterTables.set("text_space")
    private let accents = CharacterTables.set("category_Mn")

    /// Reads a `tokenizer.json`.
    ///
    /// - Throws: `UnsupportedTokenizer` where it is broken, or uses a step that is not known here.
    public init(json: Data) throws {
        do {
            try self.init(try Json.read([UInt8](json)))
        } catch let error as WrongJson {
            throw UnsupportedTokenizer("tokenizer.json: \(error)")
        }
    }

    /// Reads a `tokenizer.bin`, which large tokenizers have beside their `tokenizer.json`.
    ///
    /// - Throws: `UnsupportedTokenizer` where it is broken, of another version, or uses a step that is not known here.
    public init(binary: [UInt8]) throws {
        do {
            let stored = try StoredVocabulary(binary)
            try self.init(try Json.read(stored.json), stored)
        } catch let error as WrongJson {
            throw UnsupportedTokenizer("tokenizer.bin: \(error)")
        }
    }

    private init(_ file: Json, _ stored: StoredVocabulary? = nil) throws {
        guard let model = try file.child("model") else { throw UnsupportedTokenizer("tokenizer.json has no model") }
        let normalizer = try file.child("normalizer").map(Normalizers.read)
        let entries = file.present("added_tokens") == nil ? [] : try file.objects("added_tokens")
        self.model = try TokenModels.read(model, stored)
        spaceMark = self.model.id([Code(Self.mark)])
        added = try AddedTokens(entries, normalizer)
        preTokenizer = try file.child("pre_tokenizer").map(PreTokenizers.read)
        template = try Template.read(try file.child("post_processor"))
        addedIds = try entries.map { (try $0.text("content").codes, try $0.number("id")) }
    }

    /// Encodes a text, or a pair of texts.
    ///
    /// - Parameters:
    ///   - first: the text; the question, where there is a passage.
    ///   - second: the second text.
    ///   - maxLength: how many tokens the row may have, special ones included; of two texts the longer one is cut first.
    ///     Nil cuts nothing.
    ///   - cancellation: gives up a long text word by word.
    public func encode(
        _ first: String, _ second: String? = nil, maxLength: Int? = nil, cancellation: Cancellation? = nil
    ) throws -> Encoding {
        let one = try tokens(first, cancellation)
        let two = try second.map { try tokens($0, cancellation) }
        var room = one.count
        var more = two?.count ?? 0
        if let maxLength {
            let both = max(0, maxLength - template.added(two != nil))
            if room + more > both {
                if two == nil { room = min(room, both) } else { (room, more) = Self.longestFirst(room, more, both) }
            }
        }
        return row(one[..<room], two?[..<more], first, second ?? "")
    }

    /// Encodes a question with a passage in as many windows as the passage needs.
    ///
    /// - Parameters:
    ///   - question: is never cut.
    ///   - passage: is cut where needed; an empty one gives one window.
    ///   - maxLength: how many tokens a window may have, special ones included.
    ///   - stride: how many tokens of the passage each window shares with the one before.
    ///   - cancellation: gives up a long passage word by word.
    /// - Throws: `EncodingError` where the question leaves no room for a token of the passage that the window before lacks.
    public func windows(
        _ question: String, _ passage: String, maxLength: Int, stride: Int, cancellation: Cancellation? = nil
    ) throws -> [Encoding] {
        let one = try tokens(question, cancellation)
        let two = try tokens(passage, cancellation)
        let room = maxLength - template.added(true) - one.count
        if room < 1 {
            throw EncodingError(
                description: "the question has \(one.count) tokens; a row of \(maxLength) has no room for a passage beside it")
        }
        if !(0..<room).contains(stride) {
            throw EncodingError(description: "stride is \(stride); beside this question it has to be 0 to \(room - 1)")
        }
        var rows: [Encoding] = []
        var begin = 0
        var end = 0
        repeat {
            end = min(begin + room, two.count)
            rows.append(row(one[...], two[begin..<end], question, passage))
            begin += room - stride
        } while end < two.count
        return rows
    }

    /// Returns the id of a token as the vocabulary spells it, or nil.
    public func id(_ token: String) -> Int? {
        let codes = token.codes
        return addedIds.first { $0.codes == codes }?.id ?? model.id(codes)
    }

    private struct Token {
        let id: Int
        let from: Int
        let to: Int
    }

    private func tokens(_ text: String, _ cancellation: Cancellation?) throws -> [Token] {
        try cancellation?.check()
        var found: [Token] = []
        for part in added.split(AlignedText(text)) {
            if let id = part.id {
                found.append(Token(id: id, from: part.text.from[0], to: part.text.to[part.text.count - 1]))
                continue
            }
            let whole = Words(text: part.text, ranges: [0..<part.text.count])
            let words = preTokenizer?(whole) ?? whole
            try words.each { word in
                try cancellation?.check()
                if word.count == 0 { return }
                try model.tokens(word) { id, first, end in
                    found.append(Token(id: id, from: words.text.from[first], to: words.text.to[end - 1]))
                }
            }
        }
        return found
    }

    /// Returns how many tokens of each text stay. The same arithmetic as the reference's `longest_first`.
    private static func longestFirst(_ first: Int, _ second: Int, _ both: Int) -> (Int, Int) {
        var shorter = min(first, second)
        var longer = shorter > both ? shorter : max(shorter, both - shorter)
        if shorter + longer > both {
            shorter = both / 2
            longer = shorter + both % 2
        }
        return first > second ? (min(first, longer), min(second, shorter)) : (min(first, shorter), min(second, longer))
    }

    private func row(_ one: ArraySlice<Token>, _ two: ArraySlice<Token>?, _ first: String, _ second: String) -> Encoding {
        var row = Encoding(capacity: template.added(two != nil) + one.count + (two?.count ?? 0))
        for slot in template.slots(two != nil) {
            if let id = slot.id {
                add(Token(id: id, from: 0, to: 0), slot.type, -1, to: &row)
                continue
            }
            for token in slot.text == 0 ? one : two ?? [] { add(token, slot.type, slot.text, to: &row) }
        }
        tidy(&row, 0, Array(first.utf16))
        if two != nil { tidy(&row, 1, Array(second.utf16)) }
        return row
    }

    /// Leaves out spaces around tokens, and includes accents that were stripped behind a token.
    private func tidy(_ row: inout Encoding, _ of: Int, _ text: [UInt16]) {
        // From the end on, since what follows a token ends where the next one begins.
        var following = text.count
        for at in row.texts.indices.reversed() where row.texts[at] == of {
            var first = row.from[at]
            var end = row.to[at]
            let next = following
            following = first
            // The space that SentencePiece puts in front of a text has no character there.
            if row.ids[at] == spaceMark, !(end - first == 1 && text[first] == Self.mark) { end = first }
            while first < end, spaces.contains(Code(text[first])) { first += 1 }
            while first < end, spaces.contains(Code(text[end - 1])) { end -= 1 }
            while first < end, end < next, case let code = AlignedText.code(text, end), accents.contains(code) {
                end += code > 0xFFFF ? 2 : 1
            }
            row.from[at] = first
            row.to[at] = end
        }
    }

    private static let mark: UInt16 = 0x2581

    private func add(_ token: Token, _ type: Int, _ text: Int, to row: inout Encoding) {
        row.ids.append(token.id)
        row.types.append(type)
        row.texts.append(text)
        row.from.append(token.from)
        row.to.append(token.to)
    }
}
