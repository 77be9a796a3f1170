package pocketbert.app.screens

import androidx.compose.foundation.isSystemInDarkTheme
import androidx.compose.material3.MaterialTheme
import androidx.compose.material3.Typography
import androidx.compose.material3.darkColorScheme
import androidx.compose.material3.lightColorScheme
import androidx.compose.runtime.Composable
import androidx.compose.runtime.CompositionLocalProvider
import androidx.compose.runtime.Immutable
import androidx.compose.runtime.staticCompositionLocalOf
import androidx.compose.ui.graphics.Color
import androidx.compose.ui.text.TextStyle
import androidx.compose.ui.text.font.FontWeight
import androidx.compose.ui.unit.sp

/** Colours that Material has no role for: the two sides of a comparison, and what was found in a text. */
@Immutable
class Accents(val student: Color, val reference: Color, val good: Color, val marks: MarkColors)

val LocalAccents = staticCompositionLocalOf<Accents> { error("there are no accents outside of PocketBertTheme") }

private val LIGHT = lightColorScheme(
    primary = Color(0xFF1D4E89),
    onPrimary = Color.White,
    primaryContainer = Color(0xFFD9E6F7),
    onPrimaryContainer = Color(0xFF0C2A4D),
    secondary = Color(0xFF0B7A72),
    onSecondary = Color.White,
    secondaryContainer = Color(0xFFCDEBE7),
    onSecondaryContainer = Color(0xFF06413C),
    tertiaryContainer = Color(0xFFFFE3B0),
    onTertiaryContainer = Color(0xFF4A3200),
    background = Color(0xFFF6F5F1),
    onBackground = Color(0xFF1B1D21),
    surface = Color(0xFFF6F5F1),
    onSurface = Color(0xFF1B1D21),
    surfaceVariant = Color(0xFFE8E7E1),
    onSurfaceVariant = Color(0xFF54585F),
    surfaceContainer = Color(0xFFEEEDE7),
    surfaceContainerHigh = Color.White,
    surfaceContainerHighest = Color.White,
    outline = Color(0xFF8B8F96),
    outlineVariant = Color(0xFFD6D5CE),
    error = Color(0xFFB3261E),
    errorContainer = Color(0xFFF9DEDC),
    onErrorContainer = Color(0xFF5C1512),
)
private val DARK = darkColorScheme(
    primary = Color(0xFFA5C8F5),
    onPrimary = Color(0xFF0B2A4E),
    primaryContainer = Color(0xFF1E3D63),
    onPrimaryContainer = Color(0xFFD9E6F7),
    secondary = Color(0xFF5ED3C8),
    onSecondary = Color(0xFF00302C),
    secondaryContainer = Color(0xFF124E49),
    onSecondaryContainer = Color(0xFFCDEBE7),
    tertiaryContainer = Color(0xFF5A4210),
    onTertiaryContainer = Color(0xFFFFE3B0),
    background = Color(0xFF10131A),
    onBackground = Color(0xFFE7E8EC),
    surface = Color(0xFF10131A),
    onSurface = Color(0xFFE7E8EC),
    surfaceVariant = Color(0xFF2A2F3A),
    onSurfaceVariant = Color(0xFFB3B8C2),
    surfaceContainer = Color(0xFF171B24),
    surfaceContainerHigh = Color(0xFF1C212B),
    surfaceContainerHighest = Color(0xFF232936),
    outline = Color(0xFF848A96),
    outlineVariant = Color(0xFF343A47),
    error = Color(0xFFF2B8B5),
    errorContainer = Color(0xFF6B1F1B),
    onErrorContainer = Color(0xFFF9DEDC),
)
private val LIGHT_MARKS = MarkColors(
    sure = Color(0xFF0B7A72),
    onSure = Color.White,
    likely = Color(0xFFCDEBE7),
    onLikely = Color(0xFF06413C),
    outline = Color(0xFF6F747C),
)
private val DARK_MARKS = MarkColors(
    sure = Color(0xFF5ED3C8),
    onSure = Color(0xFF00302C),
    likely = Color(0xFF124E49),
    onLikely = Color(0xFFCDEBE7),
    outline = Color(0xFF9AA0AB),
)
private val TYPE = Typography().run {
    copy(
        headlineMedium = headlineMedium.copy(fontWeight = FontWeight.SemiBold),
        titleLarge = titleLarge.copy(fontWeight = FontWeight.SemiBold),
        titleMedium = titleMedium.copy(fontWeight = FontWeight.SemiBold),
    )
}

/** Figures of one width, so that a latency that changes does not dance. */
fun TextStyle.tabular() = copy(fontFeatureSettings = "tnum")

/** The one number that a screen is about. */
val Typography.figure get() = displaySmall.copy(fontWeight = FontWeight.SemiBold, letterSpacing = (-0.5).sp).tabular()

/** An answer that is a sentence. */
val Typography.answer get() = headlineSmall.copy(fontWeight = FontWeight.SemiBold)

@Composable
fun PocketBertTheme(content: @Composable () -> Unit) {
    val isDark = isSystemInDarkTheme()
    val accents = if (isDark) {
        Accents(student = Color(0xFF5ED3C8), reference = Color(0xFF7F8896), good = Color(0xFF7BD88F), DARK_MARKS)
    } else {
        Accents(student = Color(0xFF0B7A72), reference = Color(0xFF9AA1AB), good = Color(0xFF1E7B34), LIGHT_MARKS)
    }
    CompositionLocalProvider(LocalAccents provides accents) {
        MaterialTheme(colorScheme = if (isDark) DARK else LIGHT, typography = TYPE, content = content)
    }
}
