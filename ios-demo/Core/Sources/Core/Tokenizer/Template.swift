/// How special tokens are put around one text or two: the `post_processor` of `tokenizer.json`.
struct Template: Sendable {
    /// A special token, or the place of a text (0 or 1).
    struct Slot: Sendable {
        let id: Int?
        let text: Int
        let type: Int

        init(_ id: Int?, _ text: Int, _ type: Int) {
            self.id = id
            self.text = text
            self.type = type
        }
    }

    private let single: [Slot]
    private let pair: [Slot]

    private init(_ single: [Slot], _ pair: [Slot]) {
        self.single = single
        self.pair = pair
    }

    func slots(_ isPair: Bool) -> [Slot] { isPair ? pair : single }

    /// How many special tokens come with one text or two.
    func added(_ isPair: Bool) -> Int { slots(isPair).count { $0.id != nil } }

    private static let bare = Template([Slot(nil, 0, 0)], [Slot(nil, 0, 0), Slot(nil, 1, 1)])

    static func read(_ step: Json?) throws -> Template { try step.flatMap(find) ?? bare }

    private static func find(_ step: Json) throws -> Template? {
        let kind = try step.text("type")
        switch kind {
        case "Sequence":
            let all = try step.objects("processors").compactMap(find)
            if all.count > 1 { throw unsupported("several templates") }
            return all.first
        case "ByteLevel": return nil
        case "TemplateProcessing": return try template(step)
        case "BertProcessing": return try around(step, middle: 1, second: 1)
        case "RobertaProcessing": return try around(step, middle: 2, second: 0)
        default: throw unsupported("the post_processor \(kind)")
        }
    }

    private static func unsupported(_ what: String) -> UnsupportedTokenizer {
        UnsupportedTokenizer("tokenizer.json has \(what), which is not supported")
    }

    private static func around(_ step: Json, middle: Int, second: Int) throws -> Template {
        let ids = try ["cls", "sep"].map { name in
            let entry = try step.array(name)
            guard entry.count == 2, let id = entry[1].whole else { throw unsupported("a \(name) without an id") }
            return id
        }
        let first = [Slot(ids[0], 0, 0), Slot(nil, 0, 0), Slot(ids[1], 0, 0)]
        let between = [Slot](repeating: Slot(ids[1], 0, 0), count: middle - 1)
        return Template(first, first + between + [Slot(nil, 1, second), Slot(ids[1], 0, second)])
    }

    private static func template(_ step: Json) throws -> Template {
        let specials = try step.child("special_tokens") ?? .object([])
        return Template(try slots(try step.objects("single"), specials), try slots(try step.objects("pair"), specials))
    }

    private static func slots(_ entries: [Json], _ specials: Json) throws -> [Slot] {
        try entries.flatMap { entry -> [Slot] in
            if let text = try entry.child("Sequence") {
                return [Slot(nil, try text.text("id") == "A" ? 0 : 1, try text.number("type_id"))]
            }
            guard let special = try entry.child("SpecialToken") else { throw unsupported("a template with neither text nor token") }
            let name = try special.text("id")
            guard let token = try specials.child(name) else { throw unsupported("a template with \(name), which it does not define") }
            let type = try special.number("type_id")
            return try token.array("ids").map { id in
                guard let id = id.whole else { throw unsupported("a template with \(name), whose id is no number") }
                return Slot(id, 0, type)
            }
        }
    }
}
