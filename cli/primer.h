// The text that `attn train` learns from when none is named: small enough to learn in a minute, plain enough to see
// that something was learnt.
#pragma once

#include <string_view>

namespace cli {

inline constexpr std::string_view kPrimer =
    R"(The cat sat on the mat. The cat looked at the dog. The dog sat on the rug.
The dog looked at the cat. The bird sat on the tree. The bird looked at the cat.
The cat saw the bird, and the bird saw the cat. The dog saw the cat, and the cat saw the dog.
Who sat on the mat? The cat sat on the mat. Who sat on the rug? The dog sat on the rug.
Who sat on the tree? The bird sat on the tree. Who looked at the dog? The cat looked at the dog.
A word looks back at the words before it. It asks a question, and every word before it has a key.
Where the question fits the key, the word listens. What it hears is a value.
The more the question fits, the more of the value it hears. All it hears adds up to one.
The cat asks: who sat? The mat answers: the cat sat. The dog asks: who looked? The rug answers: the dog looked.
The mat is red. The rug is blue. The tree is green. The cat is on the red mat.
The dog is on the blue rug. The bird is on the green tree. What is red? The mat is red.
What is blue? The rug is blue. What is green? The tree is green.
One head looks at the last word. One head looks at the first word. One head looks at the same word.
The first head says: the word before me was cat. The second head says: the line began with the.
The third head says: I have seen this word before. Together they know what comes next.
The sun is over the tree. The moon is over the rug. The bird sings to the sun. The dog sings to the moon.
The cat does not sing. The cat sat on the mat, and the cat looked at the bird, and the bird looked at the sun.
When the sun is up, the bird sings. When the moon is up, the dog sings. When the mat is warm, the cat sits.
The bird is up when the sun is up. The dog is up when the moon is up. The cat is never up.
The cat sat on the warm mat. The dog sat on the cold rug. The bird sat on the tall tree.
Who sings to the sun? The bird sings to the sun. Who sings to the moon? The dog sings to the moon.
Who does not sing? The cat does not sing. The cat looked at the moon, and the dog looked at the sun.
The bird saw the mat, and the mat was warm. The dog saw the rug, and the rug was cold.
The cat saw the tree, and the tree was tall. The bird sat on the tall tree. The dog sat on the cold rug.
The cat sat on the warm mat. The cat looked at the dog. The dog looked at the bird. The bird looked at the cat.
)";

}  // namespace cli
