#if !canImport(Darwin)
    import Foundation

    @testable import Core

    /// The words of the app's catalog, found and filled in as Foundation does it on Apple's systems, in English.
    struct Catalog: Sendable {
        static let english = Result { try Catalog() }

        /// The forms of each key: one for `other`, and another for `one` where the catalog has it.
        private let forms: [String: [String: String]]

        private init() throws {
            let home = URL(fileURLWithPath: #filePath).deletingLastPathComponent()
            let file = home.appendingPathComponent("../../../App/Localizable.xcstrings")
            let strings = try XCStrings.read(Data(contentsOf: file)).strings
            forms = strings.mapValues { entry in
                (entry.localizations?["en"]?.variations.plural ?? [:]).mapValues(\.stringUnit.value)
            }
        }

        /// Returns the words of a key; a key that the catalog lacks is said to be lacking.
        func words(_ key: String, _ arguments: [Argument]) -> String {
            guard let forms = forms[key] else { return "‹\(key) is not in the catalog›" }
            let count = arguments.compactMap { if case .number(let number) = $0 { number } else { nil } }.first
            let form = (count == 1 ? forms["one"] : nil) ?? forms["other"] ?? key
            var parts = form.components(separatedBy: "%").makeIterator()
            var arguments = arguments.makeIterator()
            var whole = parts.next() ?? ""
            while let part = parts.next() {
                switch arguments.next() {
                case .text(let text) where part.hasPrefix("@"): whole += text + part.dropFirst(1)
                case .number(let number) where part.hasPrefix("lld"): whole += "\(number)" + part.dropFirst(3)
                case let other: whole += "‹%\(part.prefix(3)) is filled with \(String(describing: other))›"
                }
            }
            return whole
        }
    }

    enum Argument: Sendable {
        case text(String)
        case number(Int)
    }

    /// The catalog's file.
    private struct XCStrings: Decodable {
        struct Unit: Decodable {
            let value: String
        }
        struct Form: Decodable {
            let stringUnit: Unit
        }
        struct Variations: Decodable {
            let plural: [String: Form]
        }
        struct Localization: Decodable {
            let variations: Variations
        }
        struct Entry: Decodable {
            let localizations: [String: Localization]?
        }

        let strings: [String: Entry]

        static func read(_ data: Data) throws -> XCStrings { try JSONDecoder().decode(XCStrings.self, from: data) }
    }

    extension String {
        /// Foundation's, which is not on Linux.
        init(localized value: LocalizationValue) {
            switch Catalog.english {
            case .success(let catalog): self = catalog.words(value.key, value.arguments)
            case .failure(let error): self = "‹\(error)›"
            }
        }

        struct LocalizationValue: ExpressibleByStringInterpolation {
            let key: String
            let arguments: [Argument]

            init(stringLiteral value: String) {
                key = value
                arguments = []
            }

            init(stringInterpolation: StringInterpolation) {
                key = stringInterpolation.key
                arguments = stringInterpolation.arguments
            }

            struct StringInterpolation: StringInterpolationProtocol {
                var key = ""
                var arguments: [Argument] = []

                init(literalCapacity: Int, interpolationCount: Int) {}

                mutating func appendLiteral(_ literal: String) { key += literal }

                mutating func appendInterpolation(_ text: String) {
                    key += "%@"
                    arguments.append(.text(text))
                }

                mutating func appendInterpolation(_ number: Int, specifier: String) {
                    key += specifier
                    arguments.append(.number(number))
                }
            }
        }
    }
#endif
