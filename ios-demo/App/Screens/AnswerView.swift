import AppModels
import AppParts
import Core
import SwiftUI

/// An answer in the form of its task.
struct AnswerView: View {
    let answer: Answer
    let question: Question
    var neighbours: [SearchModel.Neighbour] = []

    var body: some View {
        switch answer {
        case .labels(let shares): ForEach(shares, id: \.label) { ShareRow(share: $0) }
        case .value(let value): Text(verbatim: Formats.value(value)).font(.largeTitle.weight(.semibold)).monospacedDigit()
        case .span(let found): Passage(text: question.second ?? "", found: found.map { [$0] } ?? [])
        case .entities(let found): Passage(text: question.first, found: found)
        case .embedding: ForEach(neighbours) { NeighbourRow(neighbour: $0) }
        case .hidden:
            Label("This model has random weights: its latency counts, its answers mean nothing.", systemImage: "dice")
                .font(.callout).foregroundStyle(.secondary)
        }
    }
}

/// A label with a bar as long as its probability.
private struct ShareRow: View {
    let share: Share

    var body: some View {
        VStack(alignment: .leading, spacing: 4) {
            HStack(alignment: .firstTextBaseline) {
                Text(verbatim: share.label).font(.headline)
                Spacer(minLength: 12)
                Text(verbatim: Formats.percent(share.share)).monospacedDigit()
            }
            ProgressView(value: min(max(share.share, 0), 1)).tint(Theme.student).accessibilityHidden(true)
        }
        .accessibilityElement(children: .combine)
    }
}

/// A text in which what was found is marked.
private struct Passage: View {
    let text: String
    let found: [Found]

    var body: some View {
        VStack(alignment: .leading, spacing: 8) {
            if found.isEmpty { Text("Nothing was found in the text.").foregroundStyle(.secondary) }
            Text(marked).textSelection(.enabled)
            ForEach(found.indices, id: \.self) { place in
                // An answer has a row too: who listens cannot see what is marked in the passage.
                HStack(alignment: .firstTextBaseline) {
                    (found[place].kind.map { Text(verbatim: $0) } ?? Text("Answer"))
                        .font(.caption.weight(.semibold)).foregroundStyle(.secondary)
                    Text(verbatim: part(found[place]))
                    Spacer(minLength: 12)
                    if found[place].kind != nil {
                        Text(verbatim: Formats.percent(found[place].score)).font(.callout).monospacedDigit()
                    }
                }
                .accessibilityElement(children: .combine)
            }
        }
    }

    private var marked: AttributedString {
        Segment.split(text, found).reduce(into: AttributedString()) { whole, segment in
            var piece = AttributedString(segment.text)
            if segment.found != nil {
                piece.backgroundColor = Theme.found
                piece.font = .body.weight(.semibold)
            }
            whole += piece
        }
    }

    private func part(_ found: Found) -> String {
        Segment.split(text, [found]).first { $0.found != nil }?.text ?? ""
    }
}

private struct NeighbourRow: View {
    let neighbour: SearchModel.Neighbour

    var body: some View {
        HStack(alignment: .firstTextBaseline) {
            Text(verbatim: neighbour.text)
            Spacer(minLength: 12)
            Text(verbatim: Formats.value(neighbour.cosine)).font(.callout).monospacedDigit().foregroundStyle(.secondary)
        }
        .accessibilityElement(children: .combine)
    }
}
