package pocketbert.app.screens

import androidx.compose.foundation.layout.fillMaxWidth
import androidx.compose.foundation.layout.heightIn
import androidx.compose.material3.LinearProgressIndicator
import androidx.compose.material3.Text
import androidx.compose.material3.TextButton
import androidx.compose.runtime.Composable
import androidx.compose.ui.Modifier
import androidx.compose.ui.platform.testTag
import androidx.compose.ui.res.stringResource
import androidx.compose.ui.unit.dp
import pocketbert.app.R
import pocketbert.models.SearchModel

/** What the index holds that is searched; where it is being filled, how far that is, why it rests, how to stop it, and by which model. */
@Composable
fun IndexBlock(index: SearchModel.Indexed, search: SearchModel) = Block(Modifier.testTag("index")) {
    val texts = index.texts
    if (texts == null) {
        Caption(words().passages(index.passages))
        return@Block
    }
    Text(stringResource(R.string.indexing, index.passages, texts))
    LinearProgressIndicator({ index.passages.toFloat() / texts.coerceAtLeast(1) }, Modifier.fillMaxWidth())
    index.rest?.let { Notice(words().rest(it)) }
    val (says, act) = if (index.isStopped) R.string.index_go_on to search::goOn else R.string.index_stop to search::stop
    TextButton(act, Modifier.heightIn(min = 48.dp)) { Text(stringResource(says)) }
    index.other?.let { other ->
        val offers = if (index.isFast) R.string.index_again else R.string.index_faster
        TextButton({ search.preferFast(!index.isFast) }, Modifier.heightIn(min = 48.dp)) { Text(stringResource(offers, other)) }
    }
}
